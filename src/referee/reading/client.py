"""Reads files in a process of its own (see `child`), one for each process that asks, started when it is first needed.

A file that takes more memory or time than its size explains ends that process, not ours: it is refused in one line, the
next request starts another process, and what other threads were reading is asked for again.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from referee.errors import EpisodeError
from referee.reading import child, parse
from referee.reading.handover import Part, lengths, padded, unpack
from referee.reading.limits import Limits, limits_for
from referee.reading.naming import naming

START_SECONDS = 120
_MAX_PENDING = 8
_MAX_BUFFERS = 500
AHEAD = 2
"""Files that are asked for at once: while one is looked at or handed over, the next is read."""
END = object()
_START = "import sys; sys.path[:] = sys.argv[2:]; from referee.reading.child import serve; serve(int(sys.argv[1]))"
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Fault(Exception):
    """A fault of ours in the process that reads, with its traceback."""


class _Ended(Exception):
    """The process ended, or was ended, while something was asked of it."""


class _Ticket:
    """An answer that is on its way from a process."""

    def __init__(self, process: _Process, limits: Limits) -> None:
        self.process, self.limits = process, limits
        self.answer: _Answer | None = None
        self.refusal = ""
        """Why there will be none."""
        self.abandoned = False


class _Answer(NamedTuple):
    kind: str
    text: str = ""
    last: bool = False
    """Whether nothing comes after it."""
    parts: Sequence[Part] = ()
    contents: Sequence[Any] = ()
    body: Any = b""


class _Process:
    """The process and what was asked of it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno()), *sys.path],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                env={**os.environ, **dict.fromkeys(_THREADS, "1")},
                process_group=0,  # Ctrl-C is for us
            )  # fmt: skip
        except OSError as error:
            ours.close()
            raise EpisodeError(f"the process that reads files cannot be started ({error.strerror})") from error
        finally:
            theirs.close()
        self._socket = ours
        self.pending: deque[_Ticket] = deque()
        self.numbers = itertools.count()
        self.closed: deque[int] = deque()
        """Streams that nobody wants any more; the next request tells."""
        self._blocks: dict[int, int] = {}
        self._read: list[int] = []
        if not self._readable(START_SECONDS) or child.receive(ours) is None:
            self.end()
            raise EpisodeError("the process that reads files does not start: see what it wrote above")

    def ask(self, number: int, way: str, label: str, skip: int, file: int | None, limits: Limits) -> _Ticket:
        """Ask for the next item of a stream; with a file, open it first."""
        while len(self.pending) >= _MAX_PENDING:
            self.take()
        closed = [self.closed.popleft() for _ in range(len(self.closed))]
        read, self._read = self._read, []
        try:
            child.send(self._socket, (number, way, label, skip, closed, read), file)
        except OSError:
            raise _Ended from None
        ticket = _Ticket(self, limits)
        self.pending.append(ticket)
        return ticket

    def take(self) -> None:
        """Wait for the answer to the oldest question."""
        oldest = self.pending[0]
        if not self._readable(oldest.limits.wall):
            self.end(kill=True)
            oldest.refusal = f"was not read within {oldest.limits.wall:.0f} s: refused"
            raise _Ended
        try:
            message = child.receive(self._socket)
        except OSError:
            message = None
        if message is None:
            oldest.refusal = _reason(self.end(), oldest.limits)
            raise _Ended
        self.pending.popleft()
        oldest.answer = self._answer(*message, wanted=not oldest.abandoned)

    def _answer(self, message: tuple[Any, ...], files: list[int], *, wanted: bool) -> _Answer:
        if message[0] != child.VALUE:
            return _Answer(message[0], *message[1:2])
        _, parts, total, block, content, last = message
        if block < 0:
            return _Answer(child.VALUE, "", last, parts, *_cut(np.frombuffer(bytearray(content), np.uint8), parts))
        if files:
            self._blocks[block] = files[0]
        self._read.append(block)
        if not wanted:
            return _Answer(child.VALUE)
        return _Answer(child.VALUE, "", last, parts, *_read(self._blocks[block], parts, total))

    def end(self, *, kill: bool = False) -> int:
        """End the process; returns how it ended, which may have been before."""
        self._close()
        if kill:
            self._popen.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._popen.wait(5)
        self._popen.kill()
        return self._popen.wait()

    def forget(self) -> None:
        """Let go of it without ending it: it is that of the process from which this one was forked."""
        self._close()
        self._popen.returncode = 0

    def _close(self) -> None:
        self._socket.close()
        while self._blocks:
            os.close(self._blocks.popitem()[1])

    def _readable(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if poll.poll(min(left, 60) * 1000):
                return True
        return bool(poll.poll(0))  # after we ourselves stood still


def _reason(code: int, limits: Limits) -> str:
    """Why a file is refused at which the process ended; empty where it ended by itself."""
    if code == 0:
        return ""
    if code == -signal.SIGXCPU:
        return f"took more than {limits.cpu:.0f} s of CPU time to read: refused"
    name = signal.Signals(-code).name if code < 0 else f"code {code}"
    memory = " (the system may have run out of memory)" if code == -signal.SIGKILL else ""
    return f"ended the process that read it with {name}{memory}: refused"


def _read(handle: int, parts: Sequence[Part], total: int) -> tuple[Sequence[Any], Any]:
    """Contents and pickle out of a block; each content is an array of its own, unless they are many."""
    sizes = [padded(length) for length in lengths(parts)]
    if len(sizes) > _MAX_BUFFERS:
        sizes = [sum(sizes)]
    arrays = [np.empty(size, np.uint8) for size in [*sizes, total - sum(sizes)]]
    left, start = [memoryview(array) for array in arrays if array.size], 0  # type: ignore[arg-type]
    while left:
        count = os.preadv(handle, left, start)
        if not count:
            raise EpisodeError("the process that reads files has lost what it read")
        start += count
        while left and count >= len(left[0]):
            count -= len(left.pop(0))
        if left:
            left[0] = left[0][count:]
    if len(sizes) != len(lengths(parts)):
        return _cut(np.concatenate(arrays), parts)
    contents = [array[:length] for array, length in zip(arrays, lengths(parts), strict=False)]
    return contents, memoryview(arrays[-1])  # type: ignore[arg-type]


def _cut(block: np.ndarray, parts: Sequence[Part]) -> tuple[Sequence[Any], Any]:
    """The same out of one array."""
    contents, start = [], 0
    for length in lengths(parts):
        contents.append(block[start : start + length])
        start += padded(length)
    return contents, memoryview(block[start:])  # type: ignore[arg-type]


class _Client:
    """Hands questions of any thread to the one process, and starts another after one has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def ask(self, stream: _File) -> None:
        """Ask for the next item of a stream, which is opened where the process does not have it open."""
        with self._lock:
            while True:
                if self._process is None:
                    self._process = _Process()
                process, file = self._process, None
                if stream.process is not process:
                    stream.process, stream.number, file = process, next(process.numbers), stream.handle
                try:
                    stream.ticket = process.ask(
                        stream.number, stream.way, str(stream.path), stream.delivered, file, stream.limits
                    )
                    return
                except _Ended:
                    self._ended()

    def wait(self, stream: _File) -> _Answer:
        """The answer to what was asked for a stream."""
        while True:
            ticket = stream.ticket
            assert ticket is not None
            with self._lock:
                while ticket.answer is None and not ticket.refusal and self._process is ticket.process:
                    try:
                        self._process.take()
                    except _Ended:
                        self._ended()
            if ticket.answer is not None:
                return ticket.answer
            if ticket.refusal:
                raise EpisodeError(ticket.refusal)
            self.ask(stream)  # the process has ended at another file

    def _ended(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end(kill=True)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._ended()

    def forked(self) -> None:
        """In a child of ours: its own process is started when it is needed."""
        if self._process is not None:
            self._process.forget()
        self._lock, self._process = threading.Lock(), None


class _File:
    """A file that is being read there. What is wrong with it is raised by `next`, when it is its turn."""

    def __init__(self, way: str, path: Path) -> None:
        self.way, self.path = way, path
        self.delivered = 0
        self.process: _Process | None = None
        self.number = -1
        self.ticket: _Ticket | None = None
        self.handle = -1
        self.problem: Exception | None = None
        self.over = False
        """Whether nothing comes any more."""
        self.limits = limits_for(0)
        try:
            self.handle = parse.open_file(path)
            size = os.fstat(self.handle).st_size
            if size == 0:
                raise EpisodeError("is empty")
            self.limits = limits_for(size)
            self.ask()
        except (EpisodeError, OSError) as error:
            self.problem = error

    def ask(self) -> None:
        """Ask for the next item."""
        _CLIENT.ask(self)

    def next(self) -> Any:
        """The item that was asked for; `END` where there is none."""
        if self.problem is not None:
            raise self.problem
        if self.over:
            return END
        answer = _CLIENT.wait(self)
        self.ticket = None
        if answer.kind == child.REFUSED:
            raise EpisodeError(answer.text)
        if answer.kind == child.NO_MEMORY:
            raise EpisodeError(f"takes more than {self.limits.memory >> 20} MiB of memory to read: refused")
        if answer.kind == child.FAULT:
            raise Fault(f"{self.path}: reading it failed\n{answer.text}")
        if answer.kind == child.END:
            return END
        self.delivered, self.over = self.delivered + 1, answer.last
        views = self.way == "torch" or len(answer.contents) < len(answer.parts)
        data = parse.map_file(self.handle) if views else memoryview(b"")
        return unpack(answer.body, answer.parts, answer.contents, data)

    def close(self) -> None:
        """Nobody wants more of it. The garbage collector may call this at any moment: it takes no lock."""
        if self.ticket is not None:
            self.ticket.abandoned, self.ticket = True, None
        if self.process is not None:
            self.process.closed.append(self.number)
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


def read_value(way: str, path: Path) -> Any:
    """The one value in a file."""
    with naming(path):
        file = _File(way, path)
        try:
            return file.next()
        finally:
            file.close()


def read_all(way: str, paths: Iterable[Path]) -> Iterator[Any]:
    """All that stands in some files, in order; what comes next is read while the caller is busy with the last."""
    left = iter(paths)
    coming: deque[_File] = deque()
    try:
        while True:
            coming.extend(_File(way, path) for path in itertools.islice(left, AHEAD - len(coming)))
            if not coming:
                return
            file = coming[0]
            with naming(file.path):
                item = file.next()
                if item is not END and not file.over:
                    file.ask()
            if item is END or file.over:
                coming.popleft().close()
            if item is not END:
                coming.extend(_File(way, path) for path in itertools.islice(left, AHEAD - len(coming)))
                yield item
            item = None
    finally:
        for file in coming:
            file.close()


_CLIENT = _Client()
os.register_at_fork(after_in_child=_CLIENT.forked)
atexit.register(_CLIENT.close)
