"""Processes that the campaign starts, watches and ends, each by its own pid."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

Work = Callable[[], int | None]


class Child:
    """A fork of this process that does one piece of work; all that it prints goes to a file."""

    def __init__(
        self, work: Work, log: Path, *, file_bytes: int | None = None, memory_bytes: int | None = None
    ) -> None:
        """file_bytes: no file may grow larger, as on a full disk. memory_bytes: of address space."""
        self.log, self.began = log, time.monotonic()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _live(work, log, file_bytes)
        self.code: int | None = None

    def poll(self) -> int | None:
        """The exit code (−n for signal n), or None while it lives."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def wait(self, seconds: float) -> int | None:
        """The exit code, or None where it has not ended in time."""
        end = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        return self.code

    def kill(self) -> None:
        """`kill -9`, for it and for the helpers that it has started."""
        if self.poll() is not None:
            return
        helpers = descendants(self.pid)
        os.kill(self.pid, signal.SIGKILL)
        while self.poll() is None:
            time.sleep(0.001)
        end = time.monotonic() + 2.0  # helpers notice by themselves; the few that do not are ended
        while (left := [pid for pid in helpers if lives(pid)]) and time.monotonic() < end:
            time.sleep(0.01)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def lines(self) -> list[str]:
        """Whole lines that it has printed."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return [line[:-1] for line in text.splitlines(keepends=True) if line.endswith("\n")]

    @property
    def traceback(self) -> str | None:
        """The last line of an error that was not one line."""
        lines = self.lines()
        return lines[-1] if any(line.startswith("Traceback") for line in lines) else None


def _live(work: Work, log: Path, file_bytes: int | None) -> None:
    code = 1
    try:
        os.setsid()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)  # a fork of a fork must not close it
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        if file_bytes is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then a write fails with EFBIG
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
        code = work() or 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def descendants(root: int) -> set[int]:
    """All processes below one."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    below: set[int] = set()
    todo = [root]
    while todo:
        for child in children.get(todo.pop(), []):
            below.add(child)
            todo.append(child)
    return below


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
