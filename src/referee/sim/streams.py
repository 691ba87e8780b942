"""Random numbers that depend only on (seed, episode, position): the same for any number of threads or environments."""

from __future__ import annotations

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser: every input bit reaches every output bit."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_A
    x = (x ^ (x >> np.uint64(27))) * _MIX_B
    return x ^ (x >> np.uint64(31))


class Stream:
    """One counter-based stream per row; each call of `uniform` takes the next numbers of all rows."""

    def __init__(self, seeds: np.ndarray, episodes: np.ndarray, *, purpose: int = 0) -> None:
        with np.errstate(over="ignore"):
            key = _mix(np.asarray(seeds, np.uint64) + _GOLDEN)
            key = _mix(key ^ (np.asarray(episodes, np.uint64) * _GOLDEN + np.uint64(purpose + 1)))
        self._key = key[:, None]
        self._taken = 0

    def uniform(self, count: int) -> np.ndarray:
        """f64[n,count] in [0, 1)."""
        places = np.arange(self._taken + 1, self._taken + count + 1, dtype=np.uint64)
        self._taken += count
        with np.errstate(over="ignore"):
            bits = _mix(self._key + places * _GOLDEN)
        return (bits >> np.uint64(11)) * 2.0**-53

    def between(self, low: np.ndarray | list[float], high: np.ndarray | list[float]) -> np.ndarray:
        """f64[n,k] uniform in the box from `low` to `high`."""
        low, high = np.asarray(low), np.asarray(high)
        return low + (high - low) * self.uniform(len(low))
