"""The frames that a model has scored, for those who look at them afterwards: an alarm, a refiner, a person."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class ScoredFrames:
    """Frames and what a model said of them, a row each."""

    images: np.ndarray
    """uint8[n,V,H,W,3]: the views that the model looks at."""
    summary: np.ndarray
    """f32[n,e]: where they lie for the model (`Artifact.seen`)."""
    probability: np.ndarray
    """f32[n]"""
    truth: np.ndarray | None
    """bool[n]: ground truth, where the environment tells it; None where it does not."""

    def __len__(self) -> int:
        return len(self.probability)


class ScoredBuffer:
    """An even sample of all frames that were scored since it was last taken, at most `capacity` of them."""

    def __init__(self, capacity: int = 512, *, seed: int = 0) -> None:
        self._capacity, self._random = capacity, np.random.default_rng(seed)
        self._rows: list[tuple[np.ndarray, np.ndarray, float, bool | None]] = []
        self._offered = 0

    def add(self, images: np.ndarray, summary: np.ndarray, probability: np.ndarray, truth: np.ndarray | None) -> None:
        """Offer frames; each has the same chance of being kept (reservoir sampling)."""
        for row in range(len(probability)):
            self._offered += 1
            place = len(self._rows)
            if place >= self._capacity:
                place = int(self._random.integers(self._offered))
                if place >= self._capacity:
                    continue
            told = None if truth is None else bool(truth[row])
            entry = (images[row].copy(), summary[row].copy(), float(probability[row]), told)
            self._rows[place : place + 1] = [entry]

    def take(self) -> ScoredFrames | None:
        """What was kept, and begin again; None if nothing was scored."""
        rows, self._rows, self._offered = self._rows, [], 0
        if not rows:
            return None
        truth = [row[3] for row in rows]
        return ScoredFrames(
            np.stack([row[0] for row in rows]),
            np.stack([row[1] for row in rows]),
            np.array([row[2] for row in rows], np.float32),
            None if None in truth else np.array(truth, bool),
        )
