"""Recipes over recorded episodes: list, check, look at, merge. `printing_data` prints their results."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import Progress

from referee.datasets.source import left_out, resolve
from referee.episodes import Episode, EpisodeError, EpisodeStore
from referee.episodes.formats.detect import read_any, read_named
from referee.episodes.formats.frames import save_mp4
from referee.episodes.health import Health
from referee.episodes.journal import recover
from referee.episodes.store import LABELS, Row, refuse_foreign
from referee.errors import RefereeError
from referee.labels.log import LabelLog
from referee.optional import require
from referee.pictures import GREEN, GREY, MARK, atomic_save, banner, border, check_writable, contact_sheet, save_gif

_log = logging.getLogger(__name__)
LOOKED_AT = 16
"""Episodes of a store whose pictures and labels `ls` looks at."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What a source holds."""

    source: Path
    rows: tuple[Row, ...]
    """One for each episode, the newest last."""
    newest: int
    """How many of them to list one by one."""
    warnings: tuple[str, ...]


def ls(source: Path, *, rows: int = 10) -> Listing:
    """Counts, success and size, and the newest episodes."""
    listed, notes = _rows(source)
    return Listing(source=source, rows=tuple(listed), newest=rows, warnings=tuple(notes))


@dataclass(frozen=True, kw_only=True)
class CheckedStore:
    """What reading every byte of a store found."""

    source: Path
    episodes: int
    """That can be read."""
    recovered: tuple[str, ...]
    """Ids of episodes that were brought back from journals."""
    journals_left: tuple[str, ...]
    """A line about each journal that was left alone, or in part."""
    broken: tuple[str, ...]
    """A line about each episode that is not whole."""
    labels: Path
    ignored_labels: tuple[str, ...]
    """A line about each line of `labels` that cannot be read."""
    total: int
    """Episodes, broken ones among them."""
    without_checksum: int
    warnings: tuple[str, ...] = ()

    def refuse(self) -> None:
        """An error where something is broken."""
        if self.broken:
            raise RefereeError(f"{len(self.broken)} of {self.total} episodes in {self.source} are broken: "
                               "move their files away, or bring them back from a copy")  # fmt: skip
        if self.ignored_labels:
            raise RefereeError(f"{len(self.ignored_labels)} lines of {self.labels} are ignored: see above")


def check(source: Path, *, adopt: bool = False) -> CheckedStore:
    """Read every byte of a store; `refuse` of the result is an error where something is wrong.

    adopt: bring back journals, too, of which nobody can tell whether their run has ended.
    """
    store, left = EpisodeStore(source, create=False), list[str]()
    recovered = recover(store, force=adopt, say=left.append)
    problems, labels, health = store.check(), LabelLog.of(store), Health()
    if not problems and not labels.ignored:
        for id in store.rows:
            episode = store.read(id)
            health.look(episode, labels.resolve(episode))
    return CheckedStore(
        source=source,
        episodes=len(store),
        recovered=tuple(recovered),
        journals_left=tuple(left),
        broken=tuple(problems.values()),
        labels=labels.path,
        ignored_labels=tuple(labels.ignored.values()),
        total=len(store.rows) + len(store.broken),
        without_checksum=store.without_checksum,
        warnings=tuple(health.warnings()),
    )


def view(source: Path, out: Path, *, ids: Sequence[str] = (), episodes: int = 4, columns: int = 8) -> int:
    """A film strip (.png), a film (.gif, .mp4) or a Rerun recording (.rrd) of some episodes; returns how many."""
    if out.suffix == ".mp4":
        require("av", extra="lerobot", what="writing mp4 files")
    if out.suffix in (".png", ".gif", ".mp4", ".rrd"):
        check_writable(out)
    chosen = _choose(source, ids, episodes)
    if out.suffix == ".rrd":
        from referee.episodes.rerun import save_recording

        save_recording(out, chosen)
        return len(chosen)
    if out.suffix not in (".png", ".gif", ".mp4"):
        raise RefereeError(f"{out}: write a .png (film strip), a .gif or .mp4 (film) or a .rrd (Rerun recording)")
    if out.suffix in (".gif", ".mp4"):
        films = [_film(episode, _labels(source, episode)) for episode in chosen]
        frames = [frame for film in films for frame in [*film, *film[-1:] * 12]]
        if out.suffix == ".gif":
            save_gif(out, frames)
        else:
            save_mp4(out, frames, fps=chosen[0].meta.fps or 20.0, comment=MARK)
        return len(chosen)
    rows = []
    for number, episode in enumerate(chosen):
        pick = np.linspace(0, len(episode), columns).round().astype(int)
        labels = _labels(source, episode)
        for camera, view in _views(episode).items():
            rows.append((f"{number}  {camera}", [_rimmed(view[t], labels[t], 150) for t in pick]))
    headings = ["start", *[""] * (columns - 2), "end"]
    title = f"{source.name or source}: {len(chosen)} episodes, green where a frame is a success"
    atomic_save(contact_sheet(rows, headings, title=title, tile=150), out)
    return len(chosen)


@dataclass(frozen=True, kw_only=True)
class Merged:
    """Several stores in one."""

    out: Path
    before: int
    """Episodes that were there already."""
    copied: int
    total: int


def merge(sources: Sequence[Path], out: Path, console: Console) -> Merged:
    """Copy the episodes and labels of several stores into one; an id that is there already must be the same file."""
    stores = [EpisodeStore(source, create=False) for source in sources]
    for store in stores:
        for reason in store.broken.values():
            raise EpisodeError(f"{reason}: move it away, or bring it back from a copy; nothing was merged")
    refuse_foreign(out)
    goal, copied = EpisodeStore(out), 0
    before = len(goal)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("merging", total=sum(map(len, stores)))
        for store in stores:
            for id in store.rows:
                progress.advance(task)
                if id in goal.rows:
                    if store.path(id).read_bytes() != goal.path(id).read_bytes():
                        raise EpisodeError(f"episode {id} is in {store.root} and in {out}, but they differ")
                    continue
                goal.append(store.read(id, verify=True))
                copied += 1
    for store in stores:
        LabelLog.of(goal).adopt(LabelLog.of(store))
    return Merged(out=out, before=before, copied=copied, total=len(goal))


def _rows(source: Path) -> tuple[list[Row], list[str]]:
    """A row for each episode, and what is wrong with them."""
    if (source / "episodes").is_dir():
        store = EpisodeStore(source, create=False)
        return list(store.rows.values()), [*left_out(store), *_sampled_warnings(store)]
    if not source.exists():
        raise RefereeError(f"{source} does not exist")
    health, rows = Health(), []
    for name, episode in read_named(source):
        health.look(episode)
        rows.append(replace(Row.of(episode, episode.nbytes), id=name))
    return rows, health.warnings()


def _sampled_warnings(store: EpisodeStore) -> list[str]:
    """What is wrong with a few episodes spread over a store; their data are not verified, so that this is quick."""
    ids = list(store.rows)
    some = [ids[i] for i in np.unique(np.linspace(0, len(ids) - 1, LOOKED_AT).round().astype(int))] if ids else []
    health, log = Health(sampled=len(some) < len(ids)), LabelLog.of(store)
    for id in some:
        episode = store.read(id)
        health.look(episode, log.resolve(episode))
    rows = store.rows.values()
    if not health.episodes or (
        any(row.success_once for row in rows) and any(row.success_at_end is False for row in rows)
    ):
        return health.picture_warnings()
    return health.warnings()


def _choose(source: Path, ids: Sequence[str], episodes: int) -> list[Episode]:
    if not ids:
        return _evenly(source, episodes)
    store = EpisodeStore(source, create=False)
    return [store.read(id, verify=True) for id in ids]


def _evenly(source: Path, count: int) -> list[Episode]:
    """`count` episodes, spread over the whole source."""
    if (source / "episodes").is_dir():
        store = EpisodeStore(source, create=False)
        for line in left_out(store):
            _log.warning("%s", line)
        ids = list(store.rows)
        picks = np.linspace(0, max(len(ids) - 1, 0), min(count, len(ids))).round().astype(int)
        chosen = [store.read(ids[i], verify=True) for i in picks]
    else:
        chosen = [episode for _, episode in zip(range(count), _any(source), strict=False)]
    if not chosen:
        raise RefereeError(f"{source} holds no episodes")
    return chosen


def _any(source: Path) -> Iterator[Episode]:
    if not source.exists():
        raise RefereeError(f"{source} does not exist")
    return read_any(source)


def _views(episode: Episode) -> dict[str, np.ndarray]:
    """The images of each camera by its name."""
    if "main_images" not in episode.observations:
        raise RefereeError(f"episode {episode.meta.id} holds no images to look at")
    return episode.views()


def _labels(source: Path, episode: Episode) -> np.ndarray:
    """int8[T+1]: 1 success, 0 failure, -1 unknown: what was recorded, and what was said of it in a store's log."""
    return resolve(episode, LabelLog(source / LABELS) if (source / LABELS).exists() else None)


def _film(episode: Episode, labels: np.ndarray) -> list[np.ndarray]:
    """All views of each frame side by side, with what is known of its success."""
    frames = []
    for t in range(episode.states_count):
        frame = np.concatenate([_enlarged(view[t], 240) for view in _views(episode).values()], axis=1)
        text = {1: "success", 0: "not yet", -1: "no label"}[int(labels[t])]
        frames.append(banner(frame, text, GREEN if text == "success" else GREY))
    return frames


def _rimmed(frame: np.ndarray, label: int, size: int) -> np.ndarray:
    large = _enlarged(frame, size)
    return border(large, GREEN, width=5) if label == 1 else large


def _enlarged(frame: np.ndarray, size: int) -> np.ndarray:
    """Square, `size` pixels wide; a small frame keeps its pixels visible."""
    exact = Image.Resampling.NEAREST if frame.shape[0] < size else Image.Resampling.LANCZOS
    return np.asarray(Image.fromarray(frame).resize((size, size), exact))
