"""Who writes to a folder: a lock that the kernel lets go of when its process ends, however it ends.

A suspended process keeps its lock, and the age of a file says nothing. Where a file system has no locks, the process
is looked for by its number and the time when it began; where nobody can tell, the folder is left alone.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

from referee import files

NAME = ".owner"
OLD = "it has no lock: it is of an older version, or just being begun"


class Owner:
    """This process writes to `folder`, until `release`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        files.try_lock(self._handle)
        os.write(self._handle, json.dumps(_this_process()).encode())

    def still_there(self) -> bool:
        """Whether the folder is still this one."""
        return _is_same(self._handle, self._path)

    def release(self) -> None:
        """Let go of the folder."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    __del__ = release


class Abandoned:
    """A folder that nobody writes to any more, held until the end of a `with` block.

    reason: why it cannot be had, else None. forcible: whether nobody can tell, so that `force` helps.
    """

    def __init__(self, folder: Path, *, force: bool = False) -> None:
        self.reason: str | None = None
        self.forcible = False
        self._handle = -1
        try:
            self._handle = os.open(folder / NAME, os.O_RDONLY)
        except FileNotFoundError:
            if not force:
                self.reason, self.forcible = OLD, True
            return
        except OSError as error:
            self.reason = str(error.strerror)
            return
        locked, process = files.try_lock(self._handle), _read(self._handle)
        where = f"process {process.get('pid', '?')} on {process.get('host', '?')}"
        if not _is_same(self._handle, folder / NAME):
            self.reason = "it was taken a moment ago"
        elif locked is False or (locked is None and _is_running(process)):
            self.reason = f"{where} is writing to it"
        elif not force and not _has_ended(process, locked=locked is True):
            self.reason, self.forcible = f"{where} began it, and nobody can tell from here whether that has ended", True

    def __enter__(self) -> Abandoned:
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle >= 0:
            os.close(self._handle)


def _has_ended(process: dict[str, Any], *, locked: bool) -> bool:
    """Whether the process has ended for certain. locked: nobody else had the lock."""
    here = _this_process()
    if not process.get("boot"):
        return locked and process.get("host") == here["host"]
    if process["boot"] != here["boot"]:
        return bool(process.get("host") == here["host"])  # this machine was started again since
    if locked:
        return True  # the same kernel knows all of its locks
    return process.get("pids") == here["pids"] and not _is_running(process)


def _is_running(process: dict[str, Any]) -> bool:
    """Whether that very process runs on this machine."""
    here = _this_process()
    if not here["boot"] or any(process.get(name) != here[name] for name in ("boot", "pids")):
        return False
    return process.get("began") == _began(process.get("pid"))


def _this_process() -> dict[str, Any]:
    """What tells this process from every other one, on this machine and elsewhere."""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "boot": _content("/proc/sys/kernel/random/boot_id"),
        "pids": _link("/proc/self/ns/pid"),
        "began": _began(os.getpid()),
    }


def _began(pid: Any) -> str:
    """When a process began, in ticks since the machine did; empty if it does not run."""
    fields = _content(f"/proc/{pid}/stat").rpartition(")")[2].split() if type(pid) is int else []
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""


def _content(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, ValueError):
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return ""


def _read(handle: int) -> dict[str, Any]:
    try:
        value = json.loads(os.pread(handle, 4096, 0))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _is_same(handle: int, path: Path) -> bool:
    try:
        there, here = path.stat(), os.fstat(handle)
    except OSError:
        return False
    return (there.st_ino, there.st_dev) == (here.st_ino, here.st_dev)
