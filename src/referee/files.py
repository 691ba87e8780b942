"""Writing files so that a reader, or a killed run, never finds half of one."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

MANY = 4
"""From so many files on, Linux is asked to flush all of their file system, which is then the quicker way."""
_syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


def cache_dir() -> Path:
    """Where Referee keeps what it can make again: `$REFEREE_CACHE`, else `~/.cache/referee`."""
    home = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return Path(os.environ.get("REFEREE_CACHE", f"{home}/referee")).expanduser()


@contextlib.contextmanager
def replacing(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """A temporary path beside `path`; what is written there becomes `path` when the block ends well.

    With `sync`, it is on disk before it gets its name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, handle = _locked_temporary(path)
    try:
        yield temporary
        if sync:
            flush(temporary)
        os.replace(temporary, path)
        if sync:
            flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
        os.close(handle)


def remove_left(*paths: Path) -> None:
    """Remove what killed processes left of writing these files: temporary ones that nobody has locked any more."""
    for path in paths:
        pattern = re.compile(rf"\.{re.escape(path.stem)}\.\d+\.\w{{8}}{re.escape(path.suffix)}")
        for left in path.parent.iterdir() if path.parent.is_dir() else ():
            if pattern.fullmatch(left.name):
                with contextlib.suppress(OSError):
                    handle = os.open(left, os.O_RDONLY)
                    try:
                        if try_lock(handle):
                            left.unlink()
                    finally:
                        os.close(handle)


def _locked_temporary(path: Path) -> tuple[Path, int]:
    """A temporary file beside `path`, and the handle that has it locked until it is closed."""
    while True:
        temporary = temporary_beside(path)
        try:
            handle = os.open(temporary, os.O_RDONLY)
        except FileNotFoundError:  # another process took it for left behind before it was locked
            continue
        if try_lock(handle) is not False and os.fstat(handle).st_nlink:
            return temporary, handle
        os.close(handle)


@contextlib.contextmanager
def building(folder: Path) -> Iterator[Path]:
    """A path that is not there yet: the folder made there becomes `folder` when the block ends well, else it goes."""
    with workspace(folder) as place:
        built = place / folder.name
        yield built
        if folder.exists():
            folder.rmdir()
        built.rename(folder)


@contextlib.contextmanager
def workspace(folder: Path) -> Iterator[Path]:
    """A hidden folder beside `folder` to work in, gone when the block ends.

    What a killed process left of the same folder is removed first: nobody has it locked any more.
    """
    parent, prefix = folder.parent, f".{folder.name}.part-"
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.iterdir():
        if left.name.startswith(prefix):
            with contextlib.suppress(OSError), _locked_folder(left) as ours:
                if ours:
                    shutil.rmtree(left, ignore_errors=True)
    with _new_locked_folder(prefix, parent) as place:
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def _new_locked_folder(prefix: str, parent: Path) -> Iterator[Path]:
    """A new folder, locked within; if another process took it for left behind before it was, another one."""
    while True:
        place = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with contextlib.ExitStack() as stack:
            try:
                ours = stack.enter_context(_locked_folder(place))
            except FileNotFoundError:
                continue
            if ours is not False and place.exists():
                yield place
                return


@contextlib.contextmanager
def _locked_folder(folder: Path) -> Iterator[bool | None]:
    """See `try_lock`."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield try_lock(handle)
    finally:
        os.close(handle)


def temporary_beside(path: Path) -> Path:
    """A name that no other process or thread uses; it starts with a dot and keeps the ending of `path`."""
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}.{os.getpid()}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    Path(name).chmod(0o666 & ~_umask())
    return Path(name)


def try_lock(handle: int) -> bool | None:
    """Lock an open file or folder until it is closed, or its process ends; False if another has it locked.

    None where the file system has no locks.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


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
