"""A person at a terminal: a real pseudo-terminal as standard input, into which somebody types."""

from __future__ import annotations

import array
import fcntl
import itertools
import os
import pty
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PAUSE = 0.004
"""Seconds from one look at the terminal to the next."""


def unread(terminal: int) -> int:
    """Bytes that were typed and that nobody has read yet."""
    count = array.array("i", [0])
    fcntl.ioctl(terminal, termios.FIONREAD, count)
    return count[0]


@contextmanager
def typing(keys: str) -> Iterator[None]:
    """While this lasts, standard input is a terminal on which these keys are pressed, over and over.

    The next key is pressed when the last one was read: whatever the machine's speed, no two fall on one frame.
    """
    hand, terminal = pty.openpty()
    done = threading.Event()

    def type_them() -> None:
        for key in itertools.cycle(keys):
            while not done.wait(PAUSE) and unread(terminal):
                pass
            if done.is_set():
                return
            with suppress(BlockingIOError):
                os.write(hand, key.encode())

    os.set_blocking(hand, False)
    person, before = threading.Thread(target=type_them, daemon=True), sys.stdin
    sys.stdin = os.fdopen(terminal, "r", closefd=False)
    person.start()
    try:
        yield
    finally:
        done.set()
        person.join()
        sys.stdin.close()
        sys.stdin = before
        os.close(terminal)
        os.close(hand)
