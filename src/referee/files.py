"""Writing files so that a reader, or a killed run, never finds half of one."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

MANY = 4
"""From so many files on, Linux is asked to flush all of their file system, which is then the quicker way."""
_syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


@contextlib.contextmanager
def replacing(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """A temporary path beside `path`; what is written there becomes `path` when the block ends well.

    With `sync`, it is on disk before it gets its name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_beside(path)
    try:
        yield temporary
        if sync:
            flush(temporary)
        os.replace(temporary, path)
        if sync:
            flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def temporary_beside(path: Path) -> Path:
    """A name that no other process or thread uses; it starts with a dot and keeps the ending of `path`."""
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}.{os.getpid()}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    Path(name).chmod(0o666 & ~_umask())
    return Path(name)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_all(handles: Sequence[int]) -> None:
    """Wait until several new files of one folder are on disk: many at once cost little more than one."""
    if len(handles) >= MANY and _syncfs is not None:
        if _syncfs(handles[0]) == 0:
            return
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    for handle in handles:
        os.fsync(handle)


def write_text(path: Path, text: str) -> None:
    """The whole file, or none of it."""
    with replacing(path) as temporary:
        temporary.write_text(text)


def write_json(path: Path, value: Any) -> None:
    """The same for a JSON value."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def parse_json(text: str | bytes) -> Any:
    """The value in JSON; whatever is wrong with it, its depth and its numbers too, is a ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
