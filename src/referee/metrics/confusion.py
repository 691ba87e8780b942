"""What was said about things of several kinds, counted beside what they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from referee.metrics.rates import Rate


@dataclass(frozen=True, eq=False)
class Confusion:
    """Counts of truth against word."""

    names: tuple[str, ...]
    counts: np.ndarray
    """int[c,c+1]: rows are the truth, columns what was said; the last column is whatever is none of the names."""

    @classmethod
    def of(cls, truth: Sequence[str], said: Sequence[str], names: Sequence[str]) -> Confusion:
        """Count pairs; a truth that is none of the names is refused."""
        if len(truth) != len(said):
            raise ValueError(f"{len(truth)} truths and {len(said)} words do not fit each other")
        place = {name: number for number, name in enumerate(names)}
        counts = np.zeros((len(names), len(names) + 1), np.int64)
        for true, word in zip(truth, said, strict=True):
            counts[place[true], place.get(word, len(names))] += 1
        return cls(tuple(names), counts)

    @property
    def accuracy(self) -> Rate:
        """Right words among all."""
        return Rate(int(np.trace(self.counts)), int(self.counts.sum()))

    @property
    def recalls(self) -> dict[str, Rate]:
        """Of each kind, the share that was called by its name."""
        return {
            name: Rate(int(row[i]), int(row.sum()))
            for i, (name, row) in enumerate(zip(self.names, self.counts, strict=True))
        }

    @property
    def balanced(self) -> float:
        """The mean recall over the kinds that are there: what a constant word cannot raise."""
        shares = [rate.share for rate in self.recalls.values() if rate.trials]
        return float(np.mean(shares)) if shares else float("nan")

    @property
    def unread(self) -> int:
        """Words that are none of the names."""
        return int(self.counts[:, -1].sum())

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"names": list(self.names), "counts": self.counts.tolist()}
