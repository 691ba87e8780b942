"""Frames and their labels for a binary reward model: episodes in, train.pt and val.pt out."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from referee import files
from referee.config.datasets import FrameConfig
from referee.datasets.payload import PayloadWriter
from referee.datasets.source import left_out, rereadable, resolve
from referee.datasets.split import GAP, Piece, Split, frame_hashes, order_key, sample_evenly, split
from referee.episodes import Episode, EpisodeStore
from referee.episodes.health import Health
from referee.errors import RefereeError
from referee.labels import sanity
from referee.labels.log import FAILURE, SUCCESS, UNKNOWN, LabelLog, held_frames

_log = logging.getLogger(__name__)


WITHOUT = "go without validation: --val-split 0 (in a configuration data.val_split=0 or runner.val_split=0)"


@dataclass(frozen=True)
class SideCounts:
    """One file."""

    path: Path
    episodes: int
    success: int
    fail: int
    content_hash: str

    def __str__(self) -> str:
        return f"{self.path}: {self.success} success and {self.fail} fail frames of {self.episodes} episodes"


@dataclass(frozen=True)
class FramesSummary:
    """What was built, and what looked wrong on the way."""

    train: SideCounts
    val: SideCounts | None
    """None without validation."""
    success: int
    """Frames before sampling, as those below."""
    fail: int
    unlabelled: int
    held: int
    """Of the unlabelled ones: taken while an arm held, so that nobody knows what they show."""
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        held = f" ({self.held} of them left out because the arm held, and they may be old)" if self.held else ""
        lines = [
            f"{self.success} success, {self.fail} fail and {self.unlabelled} unlabelled frames{held}",
            str(self.train),
            "without validation: all frames are for training" if self.val is None else str(self.val),
        ]
        return "\n".join(lines + [f"warning: {line}" for line in self.warnings])


def build_frames(
    source: EpisodeStore | Iterable[Episode],
    output_dir: Path | str,
    config: FrameConfig | None = None,
    *,
    cameras: tuple[str, ...] = ("main_images",),
    gap: int = GAP,
    stretches: bool = False,
    labels: LabelLog | None = None,
    name: str = "",
) -> FramesSummary:
    """Write train.pt, and val.pt unless `val_split` is 0; a label is about that very frame.

    Never more than one episode is in memory.

    Validation keeps the base rate that was recorded.

    source: read twice; an iterator that can be read only once is kept on disk in between.
    cameras: names of the views, the main one first.
    gap: frames left out around the validation stretch where there is only one episode.
    stretches: cut few episodes into stretches where they cannot be shared out whole; see `split`.
    labels: words beside the recorded truth; a store's own log unless another is given.
    name: what the metadata call the source; a store's folder unless given.
    """
    config = config or FrameConfig()
    if gap < 0:
        raise RefereeError(f"gap is {gap}, but it cannot be negative")
    if not cameras:
        raise RefereeError("cameras: name at least one")
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(source, EpisodeStore):
        labels = labels or LabelLog.of(source)
        name = name or str(source.root)
    lost = left_out(source)
    with rereadable(source, folder) as episodes:
        whole, summaries, counts, held, health = [], [], np.zeros(3, int), 0, Health()
        for episode in episodes():
            found = resolve(episode, labels)
            health.look(episode)
            summaries.append(sanity.Summary.of(episode, found))
            counts += [(found == value).sum() for value in (SUCCESS, FAILURE, UNKNOWN)]
            held += int((held_frames(episode) & (found == UNKNOWN)).sum())
            hashes = frame_hashes(episode.view(cameras[0]))
            whole.append(Piece(episode.meta.id, _sampled(found, config.num_samples_per_episode), hashes))
        if not whole:
            raise RefereeError(f"{name or 'the source'} holds no episodes")
        suspicions = [*lost, *health.picture_warnings(), *sanity.warnings(summaries)]
        for line in suspicions:
            _log.warning("%s", line)
        sides = split(whole, val_split=config.val_split, seed=config.split_seed, gap=gap, stretches=stretches,
                      without=WITHOUT)  # fmt: skip
        sides = replace(sides, train=_with_fewer_failures(sides.train, config.fail_success_ratio, config.split_seed))
        metadata = _metadata(name, config, counts, sides)
        train, val = _write(episodes(), folder, sides, cameras, metadata)
    return FramesSummary(train, val, int(counts[0]), int(counts[1]), int(counts[2]), held, tuple(suspicions))


def _sampled(labels: np.ndarray, wanted: int) -> np.ndarray:
    """The labels of the frames to use; -1 elsewhere."""
    known = np.flatnonzero(labels >= 0)
    chosen = known[sample_evenly(len(known), wanted)]
    sampled = np.full_like(labels, UNKNOWN)
    sampled[chosen] = labels[chosen]
    return sampled


def _with_fewer_failures(pieces: tuple[Piece, ...], ratio: float, seed: int) -> tuple[Piece, ...]:
    """Drop failures at random until there are `ratio` for each success; which ones depends on ids and seed only."""
    if not ratio:
        return pieces
    keep = round(ratio * sum(int((piece.labels == SUCCESS).sum()) for piece in pieces))
    lots = [
        np.where(
            piece.labels == FAILURE,
            np.random.default_rng(order_key(seed, f"{piece.episode}:{piece.start}")).random(len(piece.labels)),
            np.inf,
        )
        for piece in pieces
    ]
    drawn = np.sort(np.concatenate(lots))
    drawn = drawn[np.isfinite(drawn)]
    if keep >= len(drawn):
        return pieces
    limit = drawn[max(keep, 1) - 1]  # a model needs at least one
    return tuple(
        replace(piece, labels=np.where((lot > limit) & (lot < np.inf), UNKNOWN, piece.labels).astype(np.int8))
        for piece, lot in zip(pieces, lots, strict=True)
    )


def _metadata(name: str, config: FrameConfig, counts: np.ndarray, sides: Split) -> dict[str, Any]:
    used = [sum(int((piece.labels >= 0).sum()) for piece in side) for side in (sides.train, sides.val)]
    return {
        "source": name, "fail_success_ratio": config.fail_success_ratio,
        "num_samples_per_episode": config.num_samples_per_episode, "val_split": config.val_split,
        "random_seed": config.split_seed, "num_success_frames": int(counts[0]), "num_fail_frames": int(counts[1]),
        "num_unlabelled_frames": int(counts[2]), "num_train_samples": used[0], "num_val_samples": used[1],
    }  # fmt: skip


def _write(
    episodes: Iterator[Episode], folder: Path, sides: Split, cameras: tuple[str, ...], metadata: dict[str, Any]
) -> tuple[SideCounts, SideCounts | None]:
    """The second pass: both files are written side by side, and get their names when both are whole."""
    pieces: dict[str, list[tuple[str, Piece]]] = {}
    for side, found in (("train", sides.train), ("val", sides.val)):
        for piece in found:
            pieces.setdefault(piece.episode, []).append((side, piece))
    counts: list[SideCounts] = []
    names: tuple[str, ...] = ()
    files.remove_left(*(folder / f"{side}.pt" for side in ("train", "val")))
    with contextlib.ExitStack() as stack:
        written = ("train", "val") if sides.val else ("train",)
        paths = {side: stack.enter_context(files.replacing(folder / f"{side}.pt")) for side in written}
        writers = {side: stack.enter_context(PayloadWriter(path)) for side, path in paths.items()}
        samples: dict[str, dict[str, list[int]]] = {side: {} for side in writers}
        tasks: set[str] = set()
        for episode in episodes:
            for side, piece in pieces.get(episode.meta.id, ()):
                names = names or tuple(_camera_name(episode, camera) for camera in cameras)
                used = np.flatnonzero(piece.labels >= 0)
                if len(used):
                    views = _views(episode, piece.start + used, cameras)
                    try:
                        writers[side].add(views, piece.labels[used])
                    except RefereeError as error:
                        raise RefereeError(f"episode {episode.meta.id}: {error}") from error
                    tasks |= {episode.meta.description or episode.meta.task} - {""}
                    samples[side].setdefault(episode.meta.id, []).extend((piece.start + used).tolist())
        for side, writer in writers.items():
            where = {
                "split": side, "cameras": list(names), "tasks": sorted(tasks), "episodes": list(samples[side]),
                "episode_of_sample": [i for i, frames in enumerate(samples[side].values()) for _ in frames],
                "frame_of_sample": [frame for frames in samples[side].values() for frame in frames],
            }  # fmt: skip
            full = writer.finish({**metadata, **where})
            hash, path = full["content_hash"], folder / f"{side}.pt"
            counts.append(SideCounts(path, len(samples[side]), full["num_success"], full["num_fail"], hash))
    if not sides.val:
        (folder / "val.pt").unlink(missing_ok=True)  # of an earlier split
        return counts[0], None
    return counts[0], counts[1]


def _views(episode: Episode, frames: np.ndarray, cameras: tuple[str, ...]) -> np.ndarray:
    """uint8[n,V,H,W,3]"""
    views = [episode.view(camera)[frames] for camera in cameras]
    sizes = [f"{camera} {view.shape[2]}x{view.shape[1]}" for camera, view in zip(cameras, views, strict=True)]
    if any(view.shape != views[0].shape for view in views):
        raise RefereeError(
            f"episode {episode.meta.id} has cameras of different size ({', '.join(sizes)}): choose some that are alike"
        )
    return np.stack(views, axis=1) if len(views) > 1 else views[0][:, None]


def _camera_name(episode: Episode, camera: str) -> str:
    return episode.meta.cameras[0] if camera == "main_images" and episode.meta.cameras else camera
