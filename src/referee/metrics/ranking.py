"""How well scores put success before failure: areas, curves and order in time. Ties count as what they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Curve:
    """Points of a curve, one for each threshold at which it bends, from the highest threshold to the lowest."""

    x: np.ndarray
    """f64[n]"""
    y: np.ndarray
    """f64[n]"""
    threshold: np.ndarray
    """f64[n]: a score at or above it counts as success; the first may be inf, where nothing does."""


def auroc(labels: np.ndarray, scores: np.ndarray) -> float:
    """The probability that a random success scores above a random failure, a tie counting half; nan for one class."""
    return float(aurocs(labels, scores, np.ones((1, len(labels))))[0])


def aurocs(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """f64[B]: the same under each of B weightings [B,N] of the frames, as a bootstrap needs them."""
    success, failure = _by_score(labels, scores, weights)
    below = np.cumsum(failure, axis=1) - failure
    pairs = success.sum(axis=1) * failure.sum(axis=1)
    return _divide((success * (below + failure / 2)).sum(axis=1), pairs)


def average_precision(labels: np.ndarray, scores: np.ndarray) -> float:
    """Precision averaged over the successes as the threshold falls, without interpolation; nan without success."""
    return float(average_precisions(labels, scores, np.ones((1, len(labels))))[0])


def average_precisions(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """f64[B]: the same under each of B weightings [B,N] of the frames."""
    success, failure = _by_score(labels, scores, weights)
    found = np.cumsum(success[:, ::-1], axis=1)
    precision = _divide(found, found + np.cumsum(failure[:, ::-1], axis=1), empty=0.0)
    return _divide((success[:, ::-1] * precision).sum(axis=1), success.sum(axis=1))


def roc_curve(labels: np.ndarray, scores: np.ndarray) -> Curve:
    """False-positive rate (x) against recall (y); both classes are needed. The area under it is `auroc`."""
    success, failure, thresholds = _falling(labels, scores)
    if not success[-1] or not failure[-1]:
        raise ValueError("a ROC curve needs success and failure")
    x, y = failure / failure[-1], success / success[-1]
    return Curve(np.r_[0.0, x], np.r_[0.0, y], np.r_[np.inf, thresholds])


def pr_curve(labels: np.ndarray, scores: np.ndarray) -> Curve:
    """Recall (x) against precision (y), one point for each different score; success is needed."""
    success, failure, thresholds = _falling(labels, scores)
    if not success[-1]:
        raise ValueError("a precision-recall curve needs success")
    return Curve(success / success[-1], success / (success + failure), thresholds)


def ranks(values: np.ndarray) -> np.ndarray:
    """f64[n]: places from 1 up; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Rank correlation in -1..1; 0 where one side is constant and so says nothing about order, nan below two values."""
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} values cannot be paired")
    if len(a) < 2:
        return float("nan")
    x, y = ranks(a) - (len(a) + 1) / 2, ranks(b) - (len(b) + 1) / 2
    scale = np.sqrt((x @ x) * (y @ y))
    return float(np.clip(x @ y / scale, -1.0, 1.0)) if scale else 0.0


def voc(scores: np.ndarray) -> float:
    """Value-order correlation of one episode: Spearman between score and time. 1 = the score only ever rises."""
    return spearman(scores, np.arange(len(scores)))


def _checked(labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The labels as bool."""
    labels, scores = np.asarray(labels), np.asarray(scores)
    if labels.ndim != 1 or labels.shape != scores.shape:
        raise ValueError(f"labels {list(labels.shape)} and scores {list(scores.shape)} do not fit each other")
    if np.isnan(scores).any():
        raise ValueError("a score is NaN")
    if not np.isin(labels, (0, 1)).all():
        raise ValueError("labels must be 0 or 1: leave out what is unlabelled")
    return labels.astype(bool)


def _by_score(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weight of success and of failure [B,G] at each different score, rising."""
    success = _checked(labels, scores)
    if not len(success):
        return np.zeros((len(weights), 0)), np.zeros((len(weights), 0))
    order = np.argsort(scores, kind="stable")
    ordered = np.asarray(scores)[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    weights = np.asarray(weights, np.float64)[:, order]
    wins = np.where(success[order], weights, 0.0)
    if len(starts) == len(order):
        return wins, weights - wins
    total = np.add.reduceat(weights, starts, axis=1)
    wins = np.add.reduceat(wins, starts, axis=1)
    return wins, total - wins


def _falling(labels: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Successes and failures at or above each different score, from the highest; and those scores."""
    success, failure = _by_score(labels, scores, np.ones((1, len(labels))))
    if not success.size:
        raise ValueError("a curve needs at least one frame")
    thresholds = np.unique(scores)[::-1].astype(np.float64)
    return np.cumsum(success[0, ::-1]), np.cumsum(failure[0, ::-1]), thresholds


def _divide(above: np.ndarray, below: np.ndarray, empty: float = np.nan) -> np.ndarray:
    return np.divide(above, below, out=np.full(np.shape(above), empty), where=below > 0)
