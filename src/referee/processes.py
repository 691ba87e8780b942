"""Starting processes from anybody's program: a script without a main guard, a notebook, standard input."""

from __future__ import annotations

import os
import signal
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, `kill` and whoever shuts the machine down, and a terminal or connection that is closed."""


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
