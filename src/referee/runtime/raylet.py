"""Watches Ray's process on this machine: when it dies, Ray would end ours without a word."""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import socket
import struct
import sys
import threading

EXIT = 2
"""The exit code of errors that are told in one line."""
SHOW_CURSOR = b"\x1b[?25h"


class RayletWatch:
    """Ends this process with one line when the raylet that it is connected to is gone; `close` ends the watch."""

    def __init__(self) -> None:
        node = importlib.import_module("ray._private.worker").global_worker.node
        self.pid = _listener(node.raylet_socket_name)
        # What this process has started for a Ray of its own: its children, so that no other can have their numbers.
        self._started = [each.process.pid for group in node.all_processes.values() for each in group]
        self._process = os.pidfd_open(self.pid)
        self._stop, self._stopped = os.pipe()
        self._thread = threading.Thread(target=self._run, name="referee-raylet", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """From now on it may end."""
        os.close(self._stopped)
        self._thread.join()
        os.close(self._process)
        os.close(self._stop)

    def _run(self) -> None:
        ready, _, _ = select.select([self._process, self._stop], [], [])
        if self._stop in ready:
            return
        line = (
            f"referee: Ray's process on this machine (raylet, {self.pid}) died: see /tmp/ray/session_latest/logs; "
            "what was saved before is whole, so start Ray again and resume the run\n"
        )
        with contextlib.suppress(OSError):
            if sys.stdout.isatty():
                os.write(1, SHOW_CURSOR + b"\n")  # a progress bar has hidden it
            os.write(2, line.encode())
        for pid in self._started:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        os._exit(EXIT)  # in half a second Ray would do the same, in silence


def _listener(path: str) -> int:
    """The process behind a socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])
