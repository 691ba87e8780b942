"""How well a model tells trends: against labels of windows, by numbers that a constant answer cannot raise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from referee.datasets.windows import LABELS, NEGATIVE, POSITIVE
from referee.metrics.confusion import Confusion
from referee.metrics.rates import Rate


@dataclass(frozen=True, eq=False)
class TrendScores:
    """What came of judging labelled windows."""

    loss: float
    """Mean -log of the probability of the right label, among the three."""
    confusion: Confusion
    up: Rate
    """Of the positive windows, those to which positive is given more probability than negative."""
    down: Rate
    """Of the negative ones, the reverse."""

    @classmethod
    def of(cls, truth: Sequence[str], probabilities: np.ndarray) -> TrendScores:
        """truth: a label per window; probabilities: f32[n,3] of positive, negative, unclear."""
        rows = np.array([LABELS.index(label) for label in truth])
        right = np.maximum(probabilities[np.arange(len(rows)), rows].astype(np.float64), 1e-12)
        said = [LABELS[best] for best in probabilities.argmax(1)]
        rises = probabilities[:, 0] > probabilities[:, 1]
        up, down = (rows == LABELS.index(POSITIVE)), (rows == LABELS.index(NEGATIVE))
        return cls(
            float(-np.log(right).mean()),
            Confusion.of(truth, said, LABELS),
            Rate(int((rises & up).sum()), int(up.sum())),
            Rate(int((~rises & down).sum()), int(down.sum())),
        )

    @property
    def trend(self) -> float:
        """Up or down, told right: the mean over both, so that a common one counts no more than a rare one."""
        shares = [rate.share for rate in (self.up, self.down) if rate.trials]
        return float(np.mean(shares)) if shares else float("nan")

    @property
    def merit(self) -> float:
        """What the best model is best at: the mean recall of the three labels."""
        return self.confusion.balanced

    def numbers(self) -> dict[str, float]:
        """For a log."""
        found = {"loss": self.loss, "accuracy": self.confusion.accuracy.share, "balanced": self.confusion.balanced}
        found |= {f"recall_{name}": rate.share for name, rate in self.confusion.recalls.items() if rate.trials}
        for name, row in zip(LABELS, self.confusion.counts.tolist(), strict=True):
            found |= {f"confusion/{name}_as_{said}": float(row[place]) for place, said in enumerate(LABELS)}
        return found | {"trend": self.trend}

    def table(self) -> list[str]:
        """How many windows of each label were called what, as lines of text."""
        rows: list[tuple[str, ...]] = [("true \\ said", *LABELS)]
        rows += [(name, *map(str, row)) for name, row in zip(LABELS, self.confusion.counts.tolist(), strict=True)]
        return [f"{row[0]:<11}" + "".join(f"{cell:>10}" for cell in row[1 : len(LABELS) + 1]) for row in rows]

    def to_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` makes the same."""
        rates = {name: [rate.successes, rate.trials] for name, rate in (("up", self.up), ("down", self.down))}
        return {"loss": self.loss, "counts_matrix": self.confusion.counts.tolist(), **rates}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> TrendScores:
        """The inverse."""
        confusion = Confusion(LABELS, np.array(values["counts_matrix"], np.int64))
        return cls(values["loss"], confusion, Rate(*values["up"]), Rate(*values["down"]))

    def __str__(self) -> str:
        recalls = ", ".join(f"{name} {rate.share:.3f}" for name, rate in self.confusion.recalls.items() if rate.trials)
        return (
            f"loss {self.loss:.4f}, accuracy {self.confusion.accuracy}, recall {recalls}, up or down {self.trend:.3f}"
        )
