"""Short windows of frames and the trend in them, for a model that sees whether things get better."""

from __future__ import annotations

import logging
import pickle
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from referee import checksums, files
from referee.config.datasets import WindowConfig
from referee.datasets.source import left_out, rereadable, resolve
from referee.datasets.split import Piece, assert_no_leak, frame_hashes, order_key, sample_evenly, split
from referee.episodes import Episode, EpisodeStore
from referee.episodes.episode import IMAGES, PROGRESS
from referee.episodes.health import Health
from referee.errors import RefereeError
from referee.labels import sanity
from referee.labels.log import SUCCESS, LabelLog

POSITIVE, NEGATIVE, UNCLEAR = "positive", "negative", "unclear"
LABELS = (POSITIVE, NEGATIVE, UNCLEAR)
REVERSED = {POSITIVE: NEGATIVE, NEGATIVE: POSITIVE, UNCLEAR: UNCLEAR}
"""What a trend is called when its window is played backwards."""
TAILS = ("drop", "shift", "short")
FORMAT, INFO, SEGMENTS = "referee-windows-1", "dataset_info.json", "segments.jsonl"
_log = logging.getLogger(__name__)


def windows(length: int, size: int, stride: int, *, tail: str = "drop") -> np.ndarray:
    """int[n,2]: [start, stop) of windows of `size` frames, every `stride` frames, over `length` frames.

    tail: what becomes of frames behind the last whole window: `drop` them, `shift` one more window back so that it
    ends with the last frame, or add a `short` one.
    """
    if size < 1 or stride < 1 or tail not in TAILS:
        raise ValueError(f"windows need size and stride of at least 1 and a tail of {TAILS}")
    starts = np.arange(0, max(0, length - size + 1), stride)
    bounds = np.stack([starts, starts + size], axis=1)
    covered = int(bounds[-1, 1]) if len(bounds) else 0
    if tail == "drop" or covered >= length:
        return bounds
    if tail == "short":
        start = int(starts[-1]) + stride if len(starts) else 0
        rest = [[start, length]] if start < length else []
    else:
        rest = [[length - size, length]] if length >= size else []
    return np.concatenate([bounds, np.array(rest, bounds.dtype).reshape(-1, 2)])


def success_to_go(success: np.ndarray, discount: float) -> np.ndarray:
    """f64[T+1]: the discount to the power of the steps until the next success, 0 where none comes."""
    steps = np.full(len(success), np.inf)
    next_success = np.inf
    for index in range(len(success) - 1, -1, -1):
        next_success = 0 if success[index] else next_success + 1
        steps[index] = next_success
    return np.where(np.isinf(steps), 0.0, np.power(float(discount), steps))


def trends(progress: np.ndarray, bounds: np.ndarray, delta_threshold: float) -> tuple[np.ndarray, list[str]]:
    """The change of progress from the first to the last frame of each window, and what it is called."""
    change = progress[bounds[:, 1] - 1] - progress[bounds[:, 0]]
    names = np.select([change > delta_threshold, change < -delta_threshold], [POSITIVE, NEGATIVE], UNCLEAR)
    return change, [str(name) for name in names]


@dataclass(frozen=True)
class Window:
    """One sample: frames [start, stop) of an episode, and the trend in them."""

    episode: str
    start: int
    stop: int
    label: str
    change: float
    progress: str
    """Where the progress came from: `recorded`, or `success` to go."""
    reversed: bool = False
    frames: int = 0
    """How many of them are written."""


@dataclass(frozen=True)
class WindowsSummary:
    """What was built, and what looked wrong on the way."""

    root: Path
    train: dict[str, int]
    """Windows by label."""
    eval: dict[str, int]
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f"{self.root / name}: " + ", ".join(f"{counts[label]} {label}" for label in LABELS)
            for name, counts in (("train", self.train), ("eval", self.eval))
        ]
        return "\n".join(lines + [f"warning: {line}" for line in self.warnings])


def build_windows(
    source: EpisodeStore | Iterable[Episode],
    output_dir: Path | str,
    config: WindowConfig | None = None,
    *,
    labels: LabelLog | None = None,
    name: str = "",
) -> WindowsSummary:
    """Write dataset_info.json, {train,eval}/segments.jsonl and {train,eval}/pkl, split by episode.

    The folder appears when all of it is there; one that this function wrote before is replaced.
    """
    config = config or WindowConfig()
    root = Path(output_dir)
    if root.exists() and not (root / INFO).exists() and (not root.is_dir() or any(root.iterdir())):
        raise RefereeError(f"{root} holds something else than a window dataset: choose another folder")
    root.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(source, EpisodeStore):
        labels = labels or LabelLog.of(source)
        name = name or str(source.root)
    lost = left_out(source)
    with (
        files.workspace(root) as temporary,
        rereadable(source, temporary) as episodes,
    ):
        found: dict[str, list[Window]] = {}
        frames: dict[str, Piece] = {}
        summaries, health = [], Health()
        for episode in episodes():
            if episode.meta.id in found:
                raise RefereeError(f"episode {episode.meta.id} is there twice: give each its own id")
            resolved = resolve(episode, labels)
            summaries.append(sanity.Summary.of(episode, resolved))
            health.look(episode)
            found[episode.meta.id] = label_windows(episode, resolved, config)
            frames[episode.meta.id] = Piece(episode.meta.id, resolved, frame_hashes(episode.view("main_images")))
        _check_length([len(piece.labels) for piece in frames.values()], config)
        suspicions = [*lost, *health.picture_warnings(), *sanity.warnings(summaries)]
        for line in suspicions:
            _log.warning("%s", line)
        sides = _split(found, frames, config)
        sides["train"] = _balanced(sides["train"], config)
        built = temporary / "dataset"
        _write(episodes(), built, sides, config)
        counts = {side: dict.fromkeys(LABELS, 0) | Counter(w.label for w in sides[side]) for side in sides}
        ids = {side: sorted({window.episode for window in sides[side]}) for side in sides}
        checksums.write_json(
            built / INFO,
            {"version": FORMAT, "source": name, **_settings(config), "label_counts": counts, "episodes": ids},
        )
        _replace(built, root, temporary / "old")
    return WindowsSummary(root, counts["train"], counts["eval"], tuple(suspicions))


def _settings(config: WindowConfig) -> dict[str, Any]:
    """Under the names of the format, in which the seed of the split is the only one."""
    return {"seed" if name == "split_seed" else name: value for name, value in asdict(config).items()}


def _check_length(states: Sequence[int], config: WindowConfig) -> None:
    """Refuse windows that no episode is long enough for. states: of each episode."""
    if states and max(states) < config.window_size and config.tail != "short":
        raise RefereeError(
            f"window_size is {config.window_size}, but the longest episode has {max(states)} states: lower it"
        )


def label_windows(episode: Episode, labels: np.ndarray, config: WindowConfig) -> list[Window]:
    """The windows of one episode; none where nobody knows about progress or success."""
    progress, origin = episode.signals.get(PROGRESS), "recorded"
    if progress is None and (labels < 0).all():
        return []
    if progress is None:
        progress, origin = success_to_go(labels == SUCCESS, config.discount), "success"
    if progress.ndim != 1 or not np.isfinite(progress).all():
        raise RefereeError(f"episode {episode.meta.id}: signal {PROGRESS} must be one finite number for each state")
    bounds = windows(len(progress), config.window_size, config.stride, tail=config.tail)
    bounds = bounds[bounds[:, 1] - bounds[:, 0] > 1]  # one frame has no trend
    changes, names = trends(progress, bounds, config.delta_threshold)
    clear = int(len(bounds) * (1 - config.tail_unclear_ratio))
    names[clear:] = [UNCLEAR] * len(names[clear:])
    return [
        Window(
            episode.meta.id, start, stop, names[i], float(changes[i]), origin,
            frames=min(config.keep_frames or stop - start, stop - start),
        )
        for i in sample_evenly(len(bounds), config.num_samples_per_episode)
        for start, stop in [bounds[i].tolist()]
    ]  # fmt: skip


def _split(found: dict[str, list[Window]], frames: dict[str, Piece], config: WindowConfig) -> dict[str, list[Window]]:
    """Windows of each side; windows of a single episode that share a frame are kept apart."""
    none = np.empty(0, np.uint64)
    pieces = [
        Piece(id, np.array([window.label == POSITIVE for window in mine], np.int8), none) for id, mine in found.items()
    ]
    gap = -(-config.window_size // config.stride)
    sides = split(
        pieces,
        val_split=config.val_split,
        seed=config.split_seed,
        gap=gap,
        words=("positive window", "window that is not positive"),
    )

    def covered(side: Sequence[Piece]) -> list[Piece]:
        """The same as frames."""
        ends = [(found[piece.episode][piece.start].start, found[piece.episode][piece.stop - 1].stop) for piece in side]
        return [frames[piece.episode].part(*bounds) for piece, bounds in zip(side, ends, strict=True)]

    assert_no_leak(covered(sides.train), covered(sides.val))
    return {
        name: [window for piece in side for window in found[piece.episode][piece.start : piece.stop]]
        for name, side in (("train", sides.train), ("eval", sides.val))
    }


def _balanced(found: list[Window], config: WindowConfig) -> list[Window]:
    """Training windows with the reversed ones added, and with as many of each label as of the rarest."""
    if config.reverse_positives:
        positive = [window for window in found if window.label == POSITIVE]
        found = found + [replace(w, label=REVERSED[w.label], change=-w.change, reversed=True) for w in positive]
    if not config.balance:
        return found
    fewest = min(Counter(window.label for window in found).values())
    drawn = sorted(found, key=lambda w: order_key(config.split_seed, f"{w.episode}:{w.start}:{w.stop}:{w.reversed}"))
    kept: Counter[str] = Counter()
    chosen = set()
    for window in drawn:
        if kept[window.label] < fewest:
            kept[window.label] += 1
            chosen.add(window)
    return [window for window in found if window in chosen]


def _write(episodes: Iterator[Episode], built: Path, sides: dict[str, list[Window]], config: WindowConfig) -> None:
    wanted: dict[str, list[tuple[str, Window]]] = {}
    for side, found in sides.items():
        (built / side / "pkl").mkdir(parents=True)
        for window in found:
            wanted.setdefault(window.episode, []).append((side, window))
    rows: dict[str, list[str]] = {side: [] for side in sides}
    for episode in episodes:
        for side, window in wanted.get(episode.meta.id, ()):
            path = Path(side, "pkl", f"{len(rows[side]):06d}_{window.label}.pkl")
            task = episode.meta.description or config.task or episode.meta.task
            data = pickle.dumps({"task": task, **asdict(window), **window_images(episode, window)}, protocol=4)
            (built / path).write_bytes(data)
            row = {"pkl_path": str(path), "task": task, "answer": window.label, **asdict(window)}
            rows[side].append(checksums.sealed_line({**row, "crc32": checksums.crc32(data)}))
    for side, lines in rows.items():
        files.write_text(built / side / SEGMENTS, "".join(line + "\n" for line in lines))


def window_images(episode: Episode, window: Window) -> dict[str, np.ndarray]:
    """Arrays of their own: a view would take the whole episode with it."""
    kept = window.start + np.linspace(0, window.stop - 1 - window.start, window.frames).round().astype(int)
    return {
        name: np.array(episode.observations[name][kept[::-1] if window.reversed else kept], order="C")
        for name in IMAGES
        if name in episode.observations
    }


def _replace(built: Path, goal: Path, old: Path) -> None:
    if goal.exists():
        goal.rename(old)
    built.rename(goal)
    shutil.rmtree(old, ignore_errors=True)
