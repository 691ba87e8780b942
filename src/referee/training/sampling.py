"""Which frames make up which batch: a function of seed and epoch alone, so that a resumed run goes on exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from referee.errors import RefereeError


@dataclass(frozen=True, eq=False)
class Sampler:
    """The batches of every epoch, each split into chunks for accumulation or for several processes.

    No frame is dropped: the batches of an epoch are as equal in size as can be, and none is larger than `batch_size`.
    """

    labels: np.ndarray
    """int[N], 0 or 1."""
    batch_size: int
    seed: int
    balanced: bool = True
    """As many successes as failures in each batch; else every frame once per epoch, at its natural rate."""
    chunks: int = 1

    def __post_init__(self) -> None:
        if self.balanced and len(np.unique(self.labels)) != 2:
            raise RefereeError("balanced sampling needs frames of both labels")
        if self._drawn // self.steps_per_epoch < self.chunks:
            raise RefereeError(
                f"{len(self.labels)} training frames are too few for {self.chunks} micro-batches per step: "
                "lower global_batch_size or the number of processes"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch."""
        return -(-self._drawn // max(1, self.batch_size // (1 + self.balanced)))

    @property
    def _drawn(self) -> int:
        """Frames of an epoch; of each label, where they are balanced."""
        return -(-len(self.labels) // (1 + self.balanced))

    def epoch(self, number: int) -> list[list[np.ndarray]]:
        """For each batch its chunks, as indices of frames."""
        if not self.balanced:
            return self._cut(_permutation(len(self.labels), self.seed, number))
        # Each label has its own endless stream; the rarer one comes round more often.
        sides = [self._cut(self._stream(label, number * self._drawn, self._drawn)) for label in (0, 1)]
        return [
            [np.concatenate(pair) for pair in zip(fails, wins, strict=True)] for fails, wins in zip(*sides, strict=True)
        ]

    def _cut(self, order: np.ndarray) -> list[list[np.ndarray]]:
        return [np.array_split(batch, self.chunks) for batch in np.array_split(order, self.steps_per_epoch)]

    def _stream(self, label: int, start: int, count: int) -> np.ndarray:
        """Frames of one label: one shuffled pass over all of them after the other."""
        mine = np.flatnonzero(self.labels == label)
        first, last = start // len(mine), (start + count - 1) // len(mine)
        passes = [mine[_permutation(len(mine), self.seed, label, number)] for number in range(first, last + 1)]
        offset = start - first * len(mine)
        return np.concatenate(passes)[offset : offset + count]


def evenly(labels: np.ndarray, count: int) -> np.ndarray:
    """int[n]: rows of so many frames or fewer, evenly spaced, half of them successes if there are enough.

    labels: int[N], 0 or 1.
    """
    wins, fails = (np.flatnonzero(labels == value) for value in (1, 0))
    half = min(len(wins), max(count // 2, count - len(fails)))
    sides = ((wins, half), (fails, min(len(fails), count - half)))
    chosen = [side[np.linspace(0, len(side) - 1, most).round().astype(int)] for side, most in sides if most > 0]
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)


def _permutation(count: int, *key: int) -> np.ndarray:
    return np.random.default_rng(key).permutation(count)
