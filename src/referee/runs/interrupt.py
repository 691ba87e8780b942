"""Ctrl-C as a wish: the step under way is finished and saved; a second Ctrl-C stops at once."""

from __future__ import annotations

import os
import signal
import termios
import threading
from types import FrameType, TracebackType
from typing import Any

from rich.console import Console

from referee.processes import SIGNALS


class Interrupt:
    """While it is open, `wanted` says whether someone pressed Ctrl-C, or wants the process to end in another way."""

    def __init__(self, console: Console, says: str = "finishing this iteration and saving") -> None:
        """says: what happens now, for whoever pressed it."""
        self.wanted = False
        self._says = says
        self._console = console
        self._before: dict[signal.Signals, Any] = {}
        self._terminals = [number for number in range(3) if os.isatty(number)]

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread hears signals
        for number in SIGNALS:
            if number is signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                self._before[number] = signal.signal(number, self._press)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _press(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._leave_what_is_gone()
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True
        begin = "\n" if self._console.is_terminal else ""  # a bar may be on this line
        self._console.print(f"{begin}{self._says}; Ctrl-C again to stop at once")

    def _leave_what_is_gone(self) -> None:
        """Say nothing more to a terminal that was closed: each word would be an error, and nothing would be saved."""
        for number in self._terminals:
            try:
                termios.tcgetattr(number)
            except termios.error:
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, number)
                os.close(nowhere)
