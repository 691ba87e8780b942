"""Ctrl-C as a wish: the step under way is finished and saved; a second Ctrl-C stops at once."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

from rich.console import Console


class Interrupt:
    """While it is open, `wanted` says whether someone pressed Ctrl-C."""

    def __init__(self, console: Console, says: str = "finishing this iteration and saving") -> None:
        """says: what happens now, for whoever pressed it."""
        self.wanted = False
        self._says = says
        self._console = console
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _press(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True
        self._console.print(f"{self._says}; Ctrl-C again to stop at once")
