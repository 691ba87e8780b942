"""Starting processes from anybody's program: a script without a main guard, a notebook, standard input."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, `kill` and whoever shuts the machine down, and a terminal or connection that is closed."""


def ignore_signals() -> None:
    """Leave them to the process that started this one: it tells when to end."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def end_with_parent() -> None:
    """Leave signals to the process that started this one, and end when it has died."""
    ignore_signals()
    parent = multiprocessing.parent_process()
    assert parent is not None
    join: Callable[[], None] = parent.join

    def watch() -> None:
        join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def main_left_out() -> Iterator[None]:
    """Processes started here do not import the program again that starts them.

    multiprocessing would: that runs a script without `if __name__ == "__main__"` a second time, and fails where the
    program has no file. What is defined in it still reaches a process through cloudpickle, by value.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
