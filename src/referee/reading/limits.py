"""What reading a file may take, by its size, and how a process holds itself to it."""

from __future__ import annotations

import math
import os
import resource
import time
from typing import NamedTuple

MEMORY_BASE, MEMORY_FACTOR = 512 << 20, 40
CPU_BASE, CPU_PER_MIB = 20.0, 2.0
"""Honest files need a tenth of it: 15 bytes of memory for a byte of small arrays, 0.3 s for a MiB of numbers."""
WALL_BASE, WALL_FACTOR = 60.0, 5.0
_MACHINE_SHARE = 0.8


class Limits(NamedTuple):
    """Bytes of memory beyond what the process has, seconds of CPU time, and seconds until an answer must be there."""

    memory: int
    cpu: float
    wall: float


def limits_for(size: int) -> Limits:
    """What a file of `size` bytes may take."""
    least = MEMORY_BASE + 3 * size
    machine = int(_MACHINE_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    cpu = CPU_BASE + CPU_PER_MIB * size / (1 << 20)
    return Limits(max(least, min(MEMORY_BASE + MEMORY_FACTOR * size, machine)), cpu, WALL_BASE + WALL_FACTOR * cpu)


class Keeper:
    """Holds this process to limits, file after file."""

    def __init__(self) -> None:
        self._hard = {kind: resource.getrlimit(kind)[1] for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS)}
        try:
            self._memory: int | None = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # a system that does not tell, and that would not keep to it either
            self._memory = None

    def hold_to(self, limits: Limits) -> None:
        """Limit this process from now on; the limits of the file before no longer count."""
        self._set(resource.RLIMIT_CPU, math.ceil(time.process_time() + limits.cpu))
        if self._memory is not None:
            used = int(os.pread(self._memory, 64, 0).split()[0]) * resource.getpagesize()
            self._set(resource.RLIMIT_AS, used + limits.memory)

    def _set(self, kind: int, value: int) -> None:
        """A soft limit; never above the hard one, which stays."""
        hard = self._hard[kind]
        resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
