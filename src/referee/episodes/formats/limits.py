"""What reading a file may take, by its size, and how a process holds itself to it."""

from __future__ import annotations

import math
import os
import resource
import time
from pathlib import Path
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


def hold_to(limits: Limits) -> None:
    """Limit this process from now on; the limits of the file before no longer count."""
    _set(resource.RLIMIT_CPU, math.ceil(time.process_time() + limits.cpu))
    if (used := address_space()) is not None:
        _set(resource.RLIMIT_AS, used + limits.memory)


def lift() -> None:
    """Nothing is limited beyond what whoever started this process has set."""
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU):
        _set(kind, resource.RLIM_INFINITY)


def address_space() -> int | None:
    """Bytes of address space that this process has; None where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
    except OSError:
        return None


def _set(kind: int, value: int) -> None:
    """A soft limit; never above the hard one, which stays."""
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY and (value == resource.RLIM_INFINITY or value > hard):
        value = hard
    resource.setrlimit(kind, (value, hard))
