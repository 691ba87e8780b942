"""Watches Ray's process on this machine: when it dies, Ray ends ours without a word, or leaves it waiting."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from referee.errors import ClusterError

GUARD = Path(__file__).with_name("raylet_guard.py")
NOTICE = 5.0
"""Seconds for the run to end by itself: where the head of the cluster died first, it knows that, and can say more."""
EXIT = 1
"""The exit code that Ray gives to a process whose raylet has died; ours is the same, whoever comes first."""


class RayletWatch:
    """Ends this process when the raylet that it is connected to is gone, with one line; `close` ends the watch."""

    def __init__(self, node: Any, check_head: Callable[[], None]) -> None:
        """node: see `engine.own_node`. check_head: raises ClusterError if the head of the cluster is gone."""
        self._check_head = check_head
        raylet = _listener(node.raylet_socket_name)
        started = [each.process.pid for group in node.all_processes.values() for each in group]
        command = [sys.executable, "-S", "-E", str(GUARD), *map(str, (raylet, *started))]
        # In a session of its own, so that Ctrl-C does not reach it.
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self._process = os.pidfd_open(raylet)
        self._stop, self._stopped = os.pipe()
        self._thread = threading.Thread(target=self._run, name="referee-raylet", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """From now on it may end."""
        os.close(self._stopped)
        self._thread.join()
        self._guard.communicate(b"the run ends well")
        os.close(self._process)
        os.close(self._stop)

    def _run(self) -> None:
        ready, _, _ = select.select([self._process, self._stop], [], [])
        if self._stop in ready:
            return
        try:
            self._check_head()
        except ClusterError:
            if select.select([self._stop], [], [], NOTICE)[0]:
                return
        os._exit(EXIT)


def _listener(path: str) -> int:
    """The process behind a socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])
