"""A small process beside a run under Ray, which tells why the run ended where Ray has ended it without a word.

It is started by its path and knows nothing but the standard library. Arguments: the raylet, and what else the run has
started. Its standard input is held open by the run, which writes there before it ends well.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys

SHOW_CURSOR = "\x1b[?25h"


def main() -> None:
    """Wait for the end of the run; say so if Ray's process ended first."""
    raylet, *others = (_open(int(pid)) for pid in sys.argv[1:])
    said = sys.stdin.buffer.read()
    if said or raylet is None or not select.select([raylet], [], [], 0)[0]:
        return
    for each in others:
        if each is not None:
            with contextlib.suppress(OSError):  # ended by itself
                signal.pidfd_send_signal(each, signal.SIGKILL)
    if sys.stderr.isatty():
        sys.stderr.write(SHOW_CURSOR + "\n")  # a progress bar has hidden it
    sys.stderr.write(
        f"referee: Ray's process on this machine (raylet, {sys.argv[1]}) died: see /tmp/ray/session_latest/logs; "
        "what was saved before is whole, so start Ray again and resume the run\n"
    )


def _open(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:  # ended already
        return None


if __name__ == "__main__":
    main()
