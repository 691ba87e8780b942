"""The process that reads files which others wrote: it serves one parent until that hangs up.

Each request names a way to read (see `ways`) and comes with the open file. Each answer is one value; a
long one is written to a block of shared memory, which the parent hands back once it has read it. Before each answer the
process limits its own memory and CPU time by the size of the file (see `limits`). Running out of memory is answered,
and then the process ends; running out of time ends it. The parent tells both apart and starts another.
"""

from __future__ import annotations

import itertools
import marshal
import operator
import os
import signal
import socket
import struct
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from referee.errors import EpisodeError
from referee.reading import parse
from referee.reading.handover import Parcel
from referee.reading.limits import Keeper, limits_for
from referee.reading.naming import naming
from referee.reading.ways import Way, way_named

LENGTH = struct.Struct("<Q")
INLINE = 64 << 10
"""Answers up to this length go through the socket; longer ones through a block of shared memory."""
KEPT = 64 << 20
"""A block that has grown larger gives its memory back."""
READY, VALUE, END, REFUSED, NO_MEMORY, FAULT = "ready", "value", "end", "refused", "no memory", "fault"
_MAX_PIECES = 512


class _Blocks:
    """Blocks of shared memory without names: they go when the last who has them goes. They are used again and again."""

    def __init__(self) -> None:
        self._handles: list[int] = []
        self._free: list[int] = []

    def fill(self, pieces: list[bytes | memoryview]) -> tuple[int, int | None]:
        """Write the pieces to a free block; returns its number, and its descriptor where the parent has none yet."""
        fresh = not self._free
        number = len(self._handles) if fresh else self._free.pop()
        if fresh:
            self._handles.append(_anonymous())
        os.lseek(self._handles[number], 0, os.SEEK_SET)
        for first in range(0, len(pieces), _MAX_PIECES):
            _write(self._handles[number], pieces[first : first + _MAX_PIECES])
        return number, self._handles[number] if fresh else None

    def free(self, number: int) -> None:
        """The parent has read it."""
        if os.fstat(self._handles[number]).st_size > KEPT:
            os.ftruncate(self._handles[number], 0)
        self._free.append(number)


class _Stream:
    """A file that is being read."""

    def __init__(self, way: Way, file: int, path: Path, skip: int) -> None:
        self._way, self.path, self._skip = way, path, skip
        self._items: Iterator[Any] | None = None
        with os.fdopen(file, "rb", buffering=0):
            self.data = parse.map_file(file)
        self.limits = limits_for(len(self.data))

    def next(self) -> tuple[bool, Any]:
        """Whether there is another item, and it."""
        with naming(self.path):
            if self._items is None:
                self._items = self._way(self.data, self.path)
                for _ in itertools.islice(self._items, self._skip):
                    pass
            return next(((True, item) for item in self._items), (False, None))

    @property
    def over(self) -> bool:
        """Whether it is known that nothing comes any more, so that nobody has to ask."""
        return self._items is not None and operator.length_hint(self._items, 1) == 0


def serve(handle: int) -> None:
    """Answer requests until the parent hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    connection = socket.socket(fileno=handle)
    streams: dict[int, _Stream] = {}
    blocks, keeper = _Blocks(), Keeper()
    send(connection, (READY,))
    while (request := receive(connection)) is not None:
        (number, way, label, skip, closed, read), files = request
        for each in closed:
            streams.pop(each, None)
        for each in read:
            blocks.free(each)
        if files:
            streams[number] = _Stream(way_named(way), files[0], Path(label), skip)
        keeper.hold_to(streams[number].limits)
        if not _answer(connection, streams, number, blocks):
            return


def _answer(connection: socket.socket, streams: dict[int, _Stream], number: int, blocks: _Blocks) -> bool:
    """Send the next item of a stream; False where this process should end."""
    stream = streams[number]
    answer: tuple[Any, ...] = (END,)
    handle = None
    try:
        more, item = stream.next()
        if more:
            parcel = Parcel(item, stream.data)
            total = parcel.length + len(parcel.body)
            if total > stream.limits.memory:
                raise MemoryError
            pieces = [*parcel.pieces(), parcel.body]
            block = -1
            if total > INLINE:
                block, handle = blocks.fill(pieces)
            answer = VALUE, parcel.parts, total, block, b"" if block >= 0 else b"".join(pieces), stream.over
    except MemoryError:
        answer = (NO_MEMORY,)
    except EpisodeError as error:
        answer = (NO_MEMORY,) if isinstance(error.__cause__, MemoryError) else (REFUSED, str(error))
    except Exception:  # a fault of ours: the parent raises it, and this process goes on
        answer = (FAULT, traceback.format_exc())
    if answer[0] != VALUE or answer[-1]:
        del streams[number]
    send(connection, answer, handle)
    return answer[0] != NO_MEMORY


def _anonymous() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("referee", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _write(handle: int, pieces: list[bytes | memoryview]) -> None:
    """All of the pieces, even where the system takes only a part at once."""
    left = [view for piece in pieces if len(view := memoryview(piece).cast("B"))]
    while left:
        count = os.writev(handle, left)
        while left and count >= len(left[0]):
            count -= len(left.pop(0))
        if left:
            left[0] = left[0][count:]


def send(connection: socket.socket, message: tuple[Any, ...], handle: int | None = None) -> None:
    """A message of plain values, with a descriptor or without."""
    body = marshal.dumps(message)
    frame = LENGTH.pack(len(body)) + body
    sent = socket.send_fds(connection, [frame], [handle]) if handle is not None else 0
    connection.sendall(frame[sent:])


def receive(connection: socket.socket) -> tuple[Any, list[int]] | None:
    """The next message and the descriptors that came with it; None where the other side has hung up."""
    head, files, _, _ = socket.recv_fds(connection, LENGTH.size, 1)
    try:
        head = head + _exactly(connection, LENGTH.size - len(head)) if head else head
        return (marshal.loads(_exactly(connection, LENGTH.unpack(head)[0])), files) if head else None
    except (EOFError, OSError):
        for each in files:
            os.close(each)
        return None


def _exactly(connection: socket.socket, count: int) -> bytes:
    chunks = []
    while count:
        chunk = connection.recv(min(count, 1 << 20))
        if not chunk:
            raise EOFError
        chunks.append(chunk)
        count -= len(chunk)
    return b"".join(chunks)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
