"""How far a number can be trusted: intervals by drawing whole episodes anew, since frames of one are alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

DRAWS = 1000
_CELLS = 4_000_000
"""Weights held at once: 32 MB."""


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval; nan where the data say nothing about it."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "not measured"
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def episode_draws(episodes: int, *, draws: int = DRAWS, seed: int = 0) -> np.ndarray:
    """int64[draws, episodes]: how often each episode is drawn when as many as there are are drawn with replacement."""
    if episodes < 1 or draws < 1:
        raise ValueError(f"{draws} draws of {episodes} episodes cannot be")
    return np.random.default_rng(seed).multinomial(episodes, np.full(episodes, 1 / episodes), size=draws)


def percentile_interval(samples: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """The middle `level` of the samples; draws in which the number does not exist (nan) are left out."""
    found = samples[~np.isnan(samples)]
    if not len(found):
        return math.nan, math.nan
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def auroc_interval(area: float, successes: int, failures: int) -> tuple[float, float]:
    """95 % interval of an AUROC of so many independent cases of each kind, after Hanley and McNeil (1982).

    Unlike a bootstrap, it stays wide where there are only a few of them.
    """
    if math.isnan(area) or not successes or not failures:
        return math.nan, math.nan
    first, second = area / (2 - area), 2 * area**2 / (1 + area)
    spread = area * (1 - area) + (successes - 1) * (first - area**2) + (failures - 1) * (second - area**2)
    reach = 1.96 * math.sqrt(max(spread, 0.0) / (successes * failures))
    return max(0.0, area - reach), min(1.0, area + reach)


def by_episode(
    statistic: Callable[[np.ndarray], np.ndarray], draws: np.ndarray, episode_of_frame: np.ndarray
) -> np.ndarray:
    """f64[draws]: a statistic of frame weights [b,N] under each draw of episodes, in bounded memory."""
    chunk = max(1, _CELLS // max(1, len(episode_of_frame)))
    parts = [statistic(draws[start : start + chunk][:, episode_of_frame]) for start in range(0, len(draws), chunk)]
    return np.concatenate(parts)


def bootstrap(
    statistic: Callable[[np.ndarray], np.ndarray],
    episode_of_frame: np.ndarray,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    level: float = 0.95,
) -> Estimate:
    """The statistic of all frames, and its interval over draws of episodes.

    statistic: from weights [b,N] of the frames to f64[b], as `aurocs` with its first two arguments given.
    episode_of_frame: int[N], counted from 0.
    """
    value = float(statistic(np.ones((1, len(episode_of_frame))))[0])
    drawn = episode_draws(int(episode_of_frame.max()) + 1, draws=draws, seed=seed)
    return Estimate(value, *percentile_interval(by_episode(statistic, drawn, episode_of_frame), level))


def weighted_quantile(values: np.ndarray, weights: np.ndarray, share: float = 0.5) -> np.ndarray:
    """f64[B]: the smallest value with at least `share` of the weight [B,n] at or below it; nan without weight."""
    weights = np.asarray(weights, np.float64)
    if not len(values):
        return np.full(len(weights), np.nan)
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[:, order], axis=1)
    total = reached[:, -1]
    place = (reached < share * total[:, None]).sum(axis=1)
    found = np.asarray(values, np.float64)[order][np.minimum(place, len(values) - 1)]
    return np.where(total > 0, found, np.nan)
