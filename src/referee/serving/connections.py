"""Who holds a connection, and for how long: callers without a token cannot keep out those with one."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
from typing import Any

GRACE = 0.5
"""Seconds in which a new caller can show its token before others may take its place,"""
HASTE = 0.05
"""or so many, where all places are taken."""


class Connections:
    """The open connections, oldest first; at most `limit`, and `share` of them without a token once `GRACE` is over.

    A caller that has shown the token keeps its place. Of the others, the oldest gives way to a new one.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._share = limit, max(1, limit // 4)
        self._opened: dict[Any, float] = {}
        self._trusted: set[Any] = set()
        self._change = threading.Condition()

    def add(self, connection: Any) -> bool:
        """Take a new one in, unless all places are taken by callers that keep theirs."""
        with self._change:
            strangers = [each for each in self._opened if each not in self._trusted]
            late = [each for each in strangers if time.monotonic() - self._opened[each] > GRACE]
            surplus = max(len(strangers) + 1 - self._share, len(self._opened) + 1 - self._limit)
            for each in late[: max(0, surplus)]:
                self._close(each)
            if not self._make_room():
                return False
            self._opened[connection] = time.monotonic()
            return True

    def _make_room(self) -> bool:
        """Let the oldest stranger give way where all places are taken; False if nobody there is a stranger."""
        while len(self._opened) >= self._limit:
            oldest = next((each for each in self._opened if each not in self._trusted), None)
            if oldest is None:
                return False
            left = HASTE - (time.monotonic() - self._opened[oldest])
            if left > 0:
                self._change.wait(left)  # it may show its token meanwhile, or go
            else:
                self._close(oldest)
        return True

    def _close(self, connection: Any) -> None:
        self._opened.pop(connection)
        with contextlib.suppress(OSError):  # gone already
            connection.shutdown(socket.SHUT_RDWR)  # its thread wakes up and ends

    def trust(self, connection: Any) -> None:
        """The caller has shown the token."""
        with self._change:
            if connection in self._opened:
                self._trusted.add(connection)
                self._change.notify_all()

    def discard(self, connection: Any) -> None:
        """It is closed."""
        with self._change:
            self._opened.pop(connection, None)
            self._trusted.discard(connection)
            self._change.notify_all()

    def hang_up(self, within: float) -> None:
        """End the connections: those that are silent now, the others after their answer."""
        with self._change:
            for connection in self._opened:
                with contextlib.suppress(OSError):  # gone already
                    connection.shutdown(socket.SHUT_RD)
            self._change.wait_for(lambda: not self._opened, within)


class TimedReader(io.RawIOBase):
    """Reads from a socket up to a deadline for all that is read, not for each piece of it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._deadline, self._then = 0.0, 0.0

    def allow(self, seconds: float, *, after_first: float | None = None) -> None:
        """What follows must be there in so many seconds; or its first byte, and the rest `after_first` that."""
        self._deadline = time.monotonic() + seconds
        self._then = 0.0 if after_first is None else after_first

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("too slow")
        self._connection.settimeout(left)
        count = self._connection.recv_into(buffer)
        if self._then:
            self._deadline, self._then = time.monotonic() + self._then, 0.0
        return count
