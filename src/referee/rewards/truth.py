"""Truth beside the verdict: how often the model is right while a policy learns to please it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from referee.errors import RefereeError
from referee.metrics.intervals import Estimate
from referee.metrics.rates import wilson


class TruthBeside:
    """Counts of what the model said and what was true, of frames or of episodes; only logged, never paid."""

    def __init__(self) -> None:
        self.both = self.model_only = self.true_only = self.neither = 0

    def add(self, model: np.ndarray, true: np.ndarray) -> None:
        """Count what the model calls success beside true success, bool of one shape."""
        model, true = np.asarray(model, bool), np.asarray(true, bool)
        if model.shape != true.shape:
            raise RefereeError(f"verdicts {list(model.shape)} and truth {list(true.shape)} differ in shape")
        self.both += int((model & true).sum())
        self.model_only += int((model & ~true).sum())
        self.true_only += int((~model & true).sum())
        self.neither += int((~model & ~true).sum())

    @property
    def count(self) -> int:
        """How many were added."""
        return self.both + self.model_only + self.true_only + self.neither

    @property
    def hacking_gap(self) -> Estimate:
        """Model success − true success, with its 95 % interval; see `paired_difference`."""
        return paired_difference(self.both, self.model_only, self.true_only, self.neither)

    def log(self, prefix: str = "reward") -> dict[str, float]:
        """The numbers under their log names; what nothing was seen of (precision, if nothing was paid) is left out."""
        said, true, count = self.both + self.model_only, self.both + self.true_only, self.count
        numbers: dict[str, float] = {"judged": count}
        if said:
            numbers["precision"] = self.both / said
        if true:
            numbers["recall"] = self.both / true
        if count:
            gap = self.hacking_gap
            numbers |= {
                "agreement": (self.both + self.neither) / count,
                "model_success": said / count,
                "true_success": true / count,
                "hacking_gap": gap.value,
                "hacking_gap_low": gap.low,
                "hacking_gap_high": gap.high,
            }
        return {f"{prefix}/{name}": value for name, value in numbers.items()}

    def add_log(self, numbers: Mapping[str, float], prefix: str = "reward") -> None:
        """Add what `log` said of others; nothing where nothing had been judged."""
        count = numbers.get(f"{prefix}/judged", 0)
        if not count:
            return
        said, true, agreed = (
            round(count * numbers[f"{prefix}/{name}"]) for name in ("model_success", "true_success", "agreement")
        )
        both = (agreed - int(count) + said + true) // 2
        self.both += both
        self.model_only += said - both
        self.true_only += true - both
        self.neither += agreed - both

    def reset(self) -> None:
        """Begin anew, as for the next iteration."""
        self.both = self.model_only = self.true_only = self.neither = 0


def paired_difference(both: int, first_only: int, second_only: int, neither: int) -> Estimate:
    """The difference of two proportions of the same trials, first − second, with Newcombe's 95 % interval.

    It is the square-and-add interval for paired data (method 10 of R. G. Newcombe, Statistics in Medicine 17, 1998,
    2635–2650): two Wilson intervals, joined by the correlation of the pairs. It keeps a width where both always
    agree. Trials must be independent: of episodes it is right, of frames of one episode it is too narrow.
    """
    count = both + first_only + second_only + neither
    if count == 0:
        return Estimate(math.nan)
    first, second = both + first_only, both + second_only
    difference = (first_only - second_only) / count
    low_1, high_1 = wilson(first, count)
    low_2, high_2 = wilson(second, count)
    below_1, above_1 = first / count - low_1, high_1 - first / count
    below_2, above_2 = second / count - low_2, high_2 - second / count
    correlation = _correlation(both, first_only, second_only, neither)

    def joined(one: float, other: float) -> float:
        return math.sqrt(max(0.0, one * one - 2 * correlation * one * other + other * other))

    return Estimate(difference, difference - joined(below_1, above_2), difference + joined(above_1, below_2))


def _correlation(both: int, first_only: int, second_only: int, neither: int) -> float:
    """Phi of the four counts, corrected for continuity where it is positive."""
    first, second = both + first_only, both + second_only
    product = first * (second_only + neither) * second * (first_only + neither)
    if product == 0:
        return 0.0
    surplus = float(both * neither - first_only * second_only)
    if surplus > 0:
        surplus = max(0.0, surplus - (first + second_only + neither) / 2)
    return surplus / math.sqrt(product)
