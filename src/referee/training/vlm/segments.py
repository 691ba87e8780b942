"""Windows with a label, as `referee dataset windows` wrote them: a line of JSON each, and an inert pickle of frames."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from referee import checksums
from referee.datasets.windows import INFO, LABELS, SEGMENTS
from referee.episodes.episode import IMAGES
from referee.errors import RefereeError
from referee.models.window import Window
from referee.reading.safe_load import load_pickle

MAX_FRAMES = 1 << 40


@dataclass(frozen=True)
class Segment:
    """One labelled window; its frames are in a file."""

    path: Path
    task: str
    label: str
    episode: str
    start: int
    stop: int
    change: float
    frames: int = 0
    """How many of its states the file shows; 0 = all."""
    crc32: str | None = None
    """Of the file; None where nobody wrote it down."""

    def __len__(self) -> int:
        """Frames that are shown."""
        return self.frames or self.stop - self.start

    def window(self) -> Window:
        """The frames."""
        if self.crc32 is not None and checksums.crc32_of(self.path) != self.crc32:
            raise RefereeError(f"{self.path}: has changed since it was written (checksum): write the windows again")
        found = load_pickle(self.path)
        if not isinstance(found, dict) or not isinstance(found.get(IMAGES[0]), np.ndarray):
            raise RefereeError(f"{self.path} holds no {IMAGES[0]}: it is no window of `referee dataset windows`")
        return Window({name: found[name] for name in IMAGES if isinstance(found.get(name), np.ndarray)}, self.task)


def pictures_of(segments: Iterable[Segment]) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """Id of each episode, and what reads the main pictures uint8[n,H,W,3] of its windows."""
    by_episode: dict[str, list[Segment]] = {}
    for each in segments:
        by_episode.setdefault(each.episode, []).append(each)
    for episode, some in by_episode.items():
        yield episode, partial(_pictures, some)


def _pictures(segments: Sequence[Segment]) -> np.ndarray:
    return np.concatenate([np.asarray(each.window().frames[IMAGES[0]]) for each in segments])


def read_segments(files: Iterable[Path | str], root: Path | str | None = None, *, frames: int = 0) -> list[Segment]:
    """The labelled windows of some segments.jsonl.

    root: where their pkl_path starts; None = the folder with dataset_info.json above each file.
    frames: refuse windows that are longer; 0 takes any.
    """
    found: list[Segment] = []
    for file in map(Path, files):
        if file.is_dir():
            file = file / SEGMENTS
        if not file.is_file():
            raise RefereeError(f"{file} is not there: give a {SEGMENTS} that `referee dataset windows` wrote")
        base = Path(root) if root is not None else _root(file)
        try:
            lines = file.read_bytes().split(b"\n")
        except OSError as error:
            raise RefereeError(f"{file} cannot be read ({error}): write it with `referee dataset windows`") from error
        for number, line in enumerate(lines, 1):
            if line.strip():
                found.append(_segment(line, base, f"{file}:{number}"))
    if not found:
        raise RefereeError(
            f"{', '.join(map(str, files))}: there are no windows in it; record more episodes, or change the split"
        )
    longest = max(found, key=len)
    if frames and len(longest) > frames:
        raise RefereeError(
            f"{longest.path} has {len(longest)} frames, but video_nframes is {frames}: set it to {len(longest)}"
        )
    return found


def _root(file: Path) -> Path:
    for folder in file.resolve().parents[:3]:
        if (folder / INFO).is_file():
            return folder
    return file.resolve().parent.parent


def _segment(line: bytes, base: Path, where: str) -> Segment:
    try:
        row = checksums.unsealed(line)[0]
        label = str(row["answer"])
        path = base / str(row["pkl_path"])
        made = Segment(
            path, str(row.get("task", "")), label, str(row.get("episode", path.stem)), int(row.get("start", 0)),
            int(row.get("stop", 0)), float(row.get("change", 0.0)), int(row.get("frames", 0)), row.get("crc32"),
        )  # fmt: skip
    except checksums.ChecksumError as error:
        raise RefereeError(f"{where} {error}: write the windows again, or remove the key checksum") from error
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise RefereeError(f"{where} is no window ({error}): write it with `referee dataset windows`") from error
    if not 0 <= made.frames < MAX_FRAMES or not 0 <= made.start <= made.stop < MAX_FRAMES:
        raise RefereeError(f"{where} has {made.frames} frames, {made.start} to {made.stop}, which cannot be")
    if label not in LABELS:
        raise RefereeError(f"{where} has the answer {label[:50]!r}: it must be one of {', '.join(LABELS)}")
    try:
        there = path.is_file()
    except OSError:  # a name that no file can have
        there = False
    if not there:
        raise RefereeError(f"{where} names {str(path)[:300]}, which is not there: set data.video_root")
    return made


def check_split(train: Sequence[Segment], val: Sequence[Segment]) -> None:
    """Refuse windows of one episode on both sides."""
    shared = sorted({each.episode for each in train} & {each.episode for each in val})
    if shared:
        raise RefereeError(f"{len(shared)} episodes are on both sides, as {shared[0]}: split them by episode")


def counts(segments: Sequence[Segment]) -> dict[str, int]:
    """Windows by label."""
    return dict.fromkeys(LABELS, 0) | Counter(each.label for each in segments)


def digest(segments: Sequence[Segment]) -> str:
    """Tells sets of windows apart."""
    words = [f"{each.episode}:{each.start}:{each.stop}:{each.label}:{each.path.name}" for each in segments]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]
