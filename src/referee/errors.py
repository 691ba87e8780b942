"""The errors that Referee raises on purpose: one line each, saying what was wrong and what to do."""

from __future__ import annotations

import errno
import re


class RefereeError(Exception):
    """Base of all expected errors; the command line prints it as one line and exits with code 2."""


MAX_LINE = 1000


def one_line(error: BaseException) -> str:
    """What an error says, in one line for a terminal: not endless, and without control characters out of a file."""
    text = " ".join(str(error).split())
    text = text if len(text) <= MAX_LINE else f"{text[: MAX_LINE - 300]} … {text[-300:]}"
    return "".join(letter if letter.isprintable() else "?" for letter in text)


class ConfigError(RefereeError):
    """A preset, a key or a value of the configuration is wrong."""


class EpisodeError(RefereeError):
    """An episode, or a file that should hold one or something else, is not as it must be."""


class ActionError(RefereeError, ValueError):
    """An action handed to an environment is not usable (shape, NaN, out of range)."""


class MissingDependency(RefereeError, ImportError):
    """A library or system package is missing; the message holds the line that installs it."""


class ClusterError(RefereeError):
    """A Ray cluster cannot be reached, or is not what the configuration says."""


class WorkerDied(RefereeError):
    """A worker's process ended, and the call under way must not be made twice."""


class TimedOut(RefereeError, TimeoutError):
    """Nobody answered in time."""


class ChannelClosed(RefereeError):
    """A channel will take and give nothing more."""


SPENT = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
DISK = re.compile(
    r"No space left on device|Disk quota exceeded|File too large|PytorchStreamWriter failed|os error (28|27|122)\b"
)
MEMORY = re.compile(r"can't allocate memory|not enough memory|std::bad_alloc|out of memory|Cannot allocate memory")


def shortage(error: BaseException) -> str | None:
    """One line where an error means that the disk is full or the memory used up; None where it means something else.

    Libraries say so in several ways, some of them only in words, or in the error that led to another.
    """
    each: BaseException | None = error
    while each is not None:
        text = " ".join(str(each).split())[:200]
        if isinstance(each, MemoryError) or (isinstance(each, OSError) and each.errno == errno.ENOMEM):
            return f"out of memory ({text or type(each).__name__}): {_MEMORY_FIX}"
        if isinstance(each, OSError) and each.errno in SPENT:
            where = f"{each.filename}: " if each.filename else ""
            return f"{where}{each.strerror}: {_DISK_FIX}"
        if isinstance(each, RuntimeError | OSError) or type(each).__name__ == "SafetensorError":
            if DISK.search(text):
                return f"the disk is full ({text}): {_DISK_FIX}"
            if MEMORY.search(text):
                return f"out of memory ({text}): {_MEMORY_FIX}"
        each = each.__cause__ or each.__context__
    return None


_DISK_FIX = "make room, and go on from what was saved before; that is whole"
_MEMORY_FIX = "close other programs, or lower batch sizes or num_envs; what was saved before is whole"
