"""Keys from the terminal, one by one and without Enter; works over SSH, and leaves the terminal as it was."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import sys
import termios
import tty
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Protocol

from referee.errors import RefereeError


class KeySource(Protocol):
    """Somebody who presses keys."""

    def read(self) -> list[str]:
        """The keys pressed since the last call, in order, without waiting."""

    def __enter__(self) -> KeySource: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class TerminalKeys:
    """Keys of the terminal that a program runs in; Ctrl-C keeps its meaning.

    Use it as a context manager: the terminal is put back on the way out, whatever happened inside.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """descriptor: of the terminal; None = standard input."""
        self._descriptor = sys.stdin.fileno() if descriptor is None else descriptor
        self._before: list[Any] | None = None

    def __enter__(self) -> TerminalKeys:
        if not os.isatty(self._descriptor):
            raise RefereeError("keys are read from a terminal, but standard input is none: start this in a terminal")
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor, termios.TCSANOW)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            with contextlib.suppress(termios.error):  # a terminal that was closed has nothing to be put back
                termios.tcsetattr(self._descriptor, termios.TCSANOW, self._before)
            self._before = None

    def read(self) -> list[str]:
        """See KeySource; arrow keys and the like, which send several characters, are left out."""
        if self._before is None:
            raise RefereeError("TerminalKeys must be entered (with TerminalKeys() as keys:) before keys are read")
        heard = b""
        while select.select([self._descriptor], [], [], 0)[0]:
            part = self._part()
            if not part:  # the terminal is gone
                break
            heard += part
        return plain_keys(heard.decode(errors="ignore"))

    def _part(self) -> bytes:
        try:
            return os.read(self._descriptor, 1024)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return b""  # it was closed


def plain_keys(text: str) -> list[str]:
    """The single keys in what a terminal sent, without escape sequences."""
    keys: list[str] = []
    place = 0
    while place < len(text):
        if text[place] == "\x1b" and text[place + 1 : place + 2] in ("[", "O"):
            place += 2
            while place < len(text) and not "@" <= text[place] <= "~":
                place += 1
        else:
            keys.append(text[place])
        place += 1
    return keys


class ScriptedKeys:
    """Stands in for a person: what is pressed between one read and the next, read after read; then nothing."""

    def __init__(self, presses: Iterable[Sequence[str]] = ()) -> None:
        self._presses = [list(each) for each in presses]

    def read(self) -> list[str]:
        """See KeySource."""
        return self._presses.pop(0) if self._presses else []

    def __enter__(self) -> ScriptedKeys:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None
