"""The parent's side of the nursery: the process, one for each that needs it, whose forks are the workers of pools."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass

from referee.envs.maniskill import vulkan
from referee.errors import RefereeError


@dataclass
class _Nursery:
    process: subprocess.Popen[bytes]
    channel: socket.socket
    owner: int
    variables: dict[str, str]


_here: list[_Nursery] = []
_lock = threading.Lock()


def start_worker(*files: int) -> int:
    """A new worker that gets those open files: its socket, the shared memory, where it complains. Returns its pid."""
    with _lock:
        for _ in range(2):  # somebody may have ended the nursery
            nursery = _find()
            try:
                socket.send_fds(nursery.channel, [b"."], files)
                heard = nursery.channel.recv(32)
            except OSError:
                heard = b""
            if heard:
                return int(heard)
            _here.clear()
    raise RefereeError("the process that starts ManiSkill's workers does not: does `import mani_skill` work?")


def _find() -> _Nursery:
    """The nursery of this process, started if there is none; after a fork, the other process' does not count."""
    variables = vulkan.variables(gpu=False)
    if not _here or _here[0].owner != os.getpid() or _here[0].variables != variables:
        _here[:] = [_start(variables)]
    return _here[0]


def _start(variables: dict[str, str]) -> _Nursery:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "referee.envs.maniskill.worker", str(os.getpid())],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
            process_group=0,
        )
    return _Nursery(process, ours, os.getpid(), variables)
