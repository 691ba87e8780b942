"""Files whose names are given once: written whole, flushed to disk, and only then named."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from referee import files
from referee.episodes.episode import EpisodeError


def write_new(folder: Path, names: Iterable[str], write: Callable[[Path], None]) -> Path:
    """Write a file and give it the first of `names` that is free. No other file is ever replaced."""
    temporary = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            goal = folder / name
            if temporary is None:
                temporary = files.temporary_beside(goal)
                write(temporary)
                files.flush(temporary)
            if _link(temporary, goal):
                files.flush(folder)
                return goal
    except OSError as error:
        raise EpisodeError(f"cannot write to {folder} ({error.strerror})") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    raise EpisodeError(f"cannot write to {folder}: all names are taken")


def taken(folder: Path, pattern: str) -> list[int]:
    """The numbers of the files in a folder whose names fit the pattern, whose first group is the number."""
    if not folder.is_dir():
        return []
    found = (re.fullmatch(pattern, entry.name) for entry in os.scandir(folder))
    return sorted(int(match[1]) for match in found if match)


def _link(temporary: Path, goal: Path) -> bool:
    """Whether the file got its name; False if another has it."""
    try:
        os.link(temporary, goal)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        if goal.exists():  # a file system without hard links
            return False
        os.replace(temporary, goal)
    return True
