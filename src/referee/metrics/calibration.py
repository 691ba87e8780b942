"""Whether probabilities mean what they say: of the frames called 70 %, 70 % should be success."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Bins = Literal["width", "mass"]


@dataclass(frozen=True, eq=False)
class Reliability:
    """What was said and what was true, bin by bin; empty bins are left out."""

    said: np.ndarray
    """f64[bins]: mean probability."""
    true: np.ndarray
    """f64[bins]: share of success."""
    count: np.ndarray
    """int[bins]: frames."""

    @property
    def ece(self) -> float:
        """The mean distance between said and true, each bin counting by its frames."""
        return float(np.abs(self.said - self.true) @ self.count / self.count.sum()) if len(self.count) else np.nan


def sigmoid(values: np.ndarray) -> np.ndarray:
    """f64: 1 / (1 + exp(-value)), never overflowing."""
    values = np.asarray(values, np.float64)
    small = np.exp(-np.abs(values))
    return np.where(values >= 0, 1.0, small) / (1.0 + small)


def probability(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """f32: sigmoid(logit / temperature), rounded once, at the end."""
    return sigmoid(np.asarray(logits, np.float64) / temperature).astype(np.float32)


def logit(probabilities: np.ndarray | float) -> np.ndarray:
    """f64: the inverse of the sigmoid; 0 and 1 give the last values that single precision tells apart from them."""
    kept = np.clip(np.asarray(probabilities, np.float64), 2.0**-40, 1.0 - 2.0**-25)
    return np.log(kept) - np.log1p(-kept)


def nll(labels: np.ndarray, logits: np.ndarray, temperature: float = 1.0) -> float:
    """Mean negative log-likelihood, from logits so that a sure mistake costs what it must."""
    scaled = np.asarray(logits, np.float64) / temperature
    return float(np.logaddexp(0.0, np.where(np.asarray(labels) > 0, -scaled, scaled)).mean())


def brier(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Mean squared distance between probability and truth: 0 is perfect, 0.25 is what a constant 0.5 gets."""
    _check(labels, probabilities)
    return float(np.mean((np.asarray(probabilities, np.float64) - labels) ** 2)) if len(labels) else np.nan


def bin_of(probabilities: np.ndarray, bins: int = 15, *, equal: Bins = "width") -> np.ndarray:
    """int[n]: the bin of each frame, of equal width in 0..1 or of equal mass; equal values share a bin."""
    values = np.asarray(probabilities, np.float64)
    if bins < 1:
        raise ValueError(f"{bins} bins cannot be")
    if equal == "width":
        return np.minimum((values * bins).astype(int), bins - 1)
    ordered = np.sort(values)
    first = np.searchsorted(ordered, values)  # the place of the first equal one: ties stay together
    return first * bins // max(1, len(values))


def reliability(labels: np.ndarray, probabilities: np.ndarray, bins: int = 15, *, equal: Bins = "width") -> Reliability:
    """Said against true. Equal mass shows where the frames are; equal width shows the whole range."""
    _check(labels, probabilities)
    which = bin_of(probabilities, bins, equal=equal)
    count = np.bincount(which, minlength=bins)
    used = count > 0
    said = np.bincount(which, np.asarray(probabilities, np.float64), minlength=bins)[used] / count[used]
    true = np.bincount(which, np.asarray(labels, np.float64), minlength=bins)[used] / count[used]
    return Reliability(said, true, count[used])


def ece(labels: np.ndarray, probabilities: np.ndarray, bins: int = 15, *, equal: Bins = "width") -> float:
    """Expected calibration error: the mean distance between said and true over the bins."""
    return reliability(labels, probabilities, bins, equal=equal).ece


def _check(labels: np.ndarray, probabilities: np.ndarray) -> None:
    if np.shape(labels) != np.shape(probabilities):
        raise ValueError(f"labels {list(np.shape(labels))} and probabilities {list(np.shape(probabilities))} differ")
    if not np.isin(labels, (0, 1)).all():
        raise ValueError("labels must be 0 or 1: leave out what is unlabelled")
    values = np.asarray(probabilities)
    if not ((values >= 0) & (values <= 1)).all():
        raise ValueError("a probability is outside 0..1")
