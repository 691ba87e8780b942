"""Time as devices and loops see it: that of the wall, or one that passes only when somebody waits."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since some moment, and a way to wait."""

    def now(self) -> float:
        """Seconds."""

    def sleep(self, seconds: float) -> None:
        """Wait; not at all if `seconds` is not positive."""


class WallClock:
    """Real time."""

    def now(self) -> float:
        """See Clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """See Clock."""
        if seconds > 0:
            time.sleep(seconds)


class SimulatedClock:
    """Time that passes only in `sleep`: loops on a twin run as fast as they can, and tests need no waiting."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """See Clock."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """See Clock."""
        if seconds > 0:
            self._now += seconds
