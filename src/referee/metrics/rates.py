"""Rates of yes among trials, with the interval in which the true rate lies."""

from __future__ import annotations

import math
from dataclasses import dataclass

Z_95 = 1.959963984540054


def wilson(successes: int, trials: int, z: float = Z_95) -> tuple[float, float]:
    """Wilson's score interval of a rate; unlike the textbook one it is right at 0 and 1 and for few trials.

    successes: how many of the trials said yes.
    trials: how many there were; 0 gives the whole range.
    z: the normal quantile, by default that of a 95 % interval.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials cannot be")
    if trials == 0:
        return 0.0, 1.0
    share = successes / trials
    scale = 1.0 + z * z / trials
    centre = (share + z * z / (2 * trials)) / scale
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / scale
    # At the ends the formula gives exactly 0 and 1; rounding must not push it outside.
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == trials else centre + half
    return low, high


@dataclass(frozen=True)
class Rate:
    """A rate as people should see it: share, interval and how many trials stand behind it."""

    successes: int
    trials: int

    @property
    def share(self) -> float:
        """Share of successes (nan without trials)."""
        return self.successes / self.trials if self.trials else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval."""
        return wilson(self.successes, self.trials)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.share:.1f} % [{100 * low:.1f}, {100 * high:.1f}] of {self.trials}"
