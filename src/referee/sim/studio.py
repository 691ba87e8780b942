"""Helper processes that draw a share of a camera's pictures: a process each, because OpenGL contexts do not share one.

States and pictures pass through memory that both sides map; a socket carries one line per request and one byte per
answer. When the parent closes the socket or dies, a helper ends.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

import numpy as np

from referee.processes import cores
from referee.sim.assets import Detail
from referee.sim.looks import Looks
from referee.sim.scene import Scene

FRAMES_PER_HELPER = 8
"""Fewer are not worth another process."""
MOST_PROCESSES = 8
"""That draw for one camera unless more are asked for: each holds a model and an OpenGL context."""
PATIENCE = 5.0
"""Seconds that a helper may be late with its share."""
ORPHAN_CHECK = 2.0
_ANSWER = b"."

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Order:
    """What a camera draws: everything that an easel is made from."""

    scene: Scene
    cameras: tuple[str, ...]
    pixels: int
    detail: Detail
    distractors: int

    @classmethod
    def parse(cls, made: dict[str, Any]) -> Order:
        """The inverse of `asdict`, after a way through JSON."""
        return cls(**{**made, "scene": Scene(**made["scene"]), "cameras": tuple(made["cameras"])})


@dataclass(frozen=True)
class Work:
    """States to draw, and the numbers of the cameras to draw them from."""

    qpos: np.ndarray
    goal: np.ndarray
    looks: Looks | None
    chosen: Sequence[int]

    def part(self, rows: slice) -> tuple[np.ndarray, np.ndarray, Looks | None, Sequence[int]]:
        """Some of the states, as `Easel.draw` takes them."""
        return self.qpos[rows], self.goal[rows], self.looks and self.looks.take(rows), self.chosen


class Studio:
    """The helpers of one camera; none before there is enough to draw, and none for a camera of one thread."""

    def __init__(self, order: Order, num_threads: int) -> None:
        self._order = order
        self._limit = min(num_threads or MOST_PROCESSES, cores()) - 1
        self._helpers: list[Helper] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def draw(self, work: Work, images: np.ndarray, own: Callable[[slice], None], backend: str) -> None:
        """Fill `images`: helpers that are ready draw their shares while `own` draws one in this process."""
        with self._alone():
            helpers = self._ready(images.shape[0] * images.shape[1], backend)[: len(images) - 1]
            bounds = [len(images) * i // (1 + len(helpers)) for i in range(2 + len(helpers))]
            mine, *parts = [slice(*pair) for pair in itertools.pairwise(bounds)]
            start = time.monotonic()
            for helper, part in zip(helpers, parts, strict=True):
                with contextlib.suppress(OSError):  # which `collect` will find
                    helper.ask(*work.part(part))
            own(mine)
            now = time.monotonic()
            deadline = now + PATIENCE + 10 * (now - start)
            for helper, part in zip(helpers, parts, strict=True):
                try:
                    images[part] = helper.collect(max(0.0, deadline - time.monotonic()))
                except OSError as error:
                    self._drop(helper, error)
                    own(part)

    def close(self) -> None:
        """End the helpers."""
        with self._alone():
            while self._helpers:
                self._helpers.pop().end()

    def _alone(self) -> threading.Lock:
        if self._pid != os.getpid():  # after a fork, the helpers are the other process'
            self._helpers, self._lock, self._pid = [], threading.Lock(), os.getpid()
        return self._lock

    def _ready(self, pictures: int, backend: str) -> list[Helper]:
        """Who can draw right now, no more than so many pictures are worth; starts those that are missing."""
        wanted = max(0, min(self._limit, pictures // FRAMES_PER_HELPER - 1))
        try:
            while len(self._helpers) < wanted:
                self._helpers.append(Helper(self._order, backend))
        except OSError as error:
            self._give_up(error)
        ready = []
        for helper in self._helpers[:wanted]:
            try:
                if helper.is_ready():
                    ready.append(helper)
            except OSError as error:
                self._drop(helper, error)
        return ready

    def _drop(self, helper: Helper, error: OSError) -> None:
        self._helpers.remove(helper)
        helper.end()
        self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Go on with the helpers that are left, and start no others."""
        self._limit = len(self._helpers)
        _log.warning("a process that helped to draw is lost (%s): the pictures are drawn without it", error)


class Helper:
    """One process that draws; where a method raises `OSError`, it is of no use any more."""

    def __init__(self, order: Order, backend: str) -> None:
        self._pixels = order.pixels
        self._file = nameless_file()
        self._memory: mmap.mmap | None = None
        self._socket, theirs = socket.socketpair()
        environ = {"MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend, "OMP_NUM_THREADS": "1", "LP_NUM_THREADS": "0"}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "referee.sim.studio"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(self._file.fileno(),),
                env={**os.environ, **environ},
                process_group=0,  # Ctrl-C is for the parent
            )
        self.end = weakref.finalize(self, _end, self.process, self._socket, self._file, os.getpid())
        self._owes = True  # the first answer says that it is ready
        self._tell({"order": asdict(order), "file": self._file.fileno(), "parent": os.getpid()})

    def is_ready(self) -> bool:
        """Whether it waits for work; does not wait for it."""
        if self._owes:
            try:
                self._hear(0.0)
            except BlockingIOError:
                return False
        return True

    def ask(self, qpos: np.ndarray, goal: np.ndarray, looks: Looks | None, chosen: Sequence[int]) -> None:
        """Let it draw, see `Easel.draw`; `collect` gives the images."""
        rows = _pack(qpos, goal, looks)
        size = rows.nbytes + len(rows) * len(chosen) * self._pixels**2 * 3
        if self._memory is None or len(self._memory) < size:
            self._file.truncate(size)
            self._memory = mmap.mmap(self._file.fileno(), size)
        np.frombuffer(self._memory, np.float64, rows.size)[:] = rows.ravel()
        self._images = _images(self._memory, rows.shape, len(chosen), self._pixels)
        self._tell({"rows": rows.shape, "looks": looks is not None, "chosen": list(chosen), "size": len(self._memory)})
        self._owes = True

    def collect(self, seconds: float) -> np.ndarray:
        """The images that it was asked for, valid until it is asked again."""
        if not self._owes:
            raise BrokenPipeError("it could not be asked")
        self._hear(seconds)
        return self._images

    def _tell(self, words: dict[str, Any]) -> None:
        self._socket.settimeout(PATIENCE)
        self._socket.sendall(json.dumps(words).encode() + b"\n")

    def _hear(self, seconds: float) -> None:
        self._socket.settimeout(seconds)
        if self._socket.recv(1) != _ANSWER:
            raise BrokenPipeError("it has ended")
        self._owes = False


def _end(process: subprocess.Popen[bytes], channel: socket.socket, file: BinaryIO, owner: int) -> None:
    channel.close()
    file.close()
    if os.getpid() == owner:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)


def nameless_file() -> BinaryIO:
    """A file in memory, or at least one without a name."""
    in_memory = getattr(os, "memfd_create", None)
    return open(in_memory("studio"), "r+b", buffering=0) if in_memory else tempfile.TemporaryFile(buffering=0)  # noqa: PTH123


def _pack(qpos: np.ndarray, goal: np.ndarray, looks: Looks | None) -> np.ndarray:
    """All that differs from state to state, f64[n,k]."""
    parts = [qpos, goal, *(() if looks is None else vars(looks).values())]
    return np.concatenate([np.asarray(part, np.float64).reshape(len(part), -1) for part in parts], axis=1)


def _unpack(rows: np.ndarray, has_looks: bool) -> tuple[np.ndarray, np.ndarray, Looks | None]:
    """The inverse of `_pack`."""
    shapes = [(3,), *(value.shape[1:] for value in vars(Looks.plain(0)).values() if has_looks)]
    widths = [math.prod(shape) for shape in shapes]
    qpos, *parts = np.split(rows, np.cumsum([rows.shape[1] - sum(widths), *widths[:-1]]), axis=1)
    goal, *look = [part.reshape(len(rows), *shape) for part, shape in zip(parts, shapes, strict=True)]
    return qpos, goal, Looks(*look) if has_looks else None


def _images(memory: mmap.mmap, rows: Sequence[int], cameras: int, pixels: int) -> np.ndarray:
    """Where the images lie: behind the rows."""
    shape = (rows[0], cameras, pixels, pixels, 3)
    return np.ndarray(shape, np.uint8, memory, offset=rows[0] * rows[1] * 8)


# --- in the helper ---


def next_order(channel: socket.socket, parent: int) -> dict[str, Any]:
    """What to do next; ends this process when there is nobody left to say so."""
    heard = b""
    while not heard.endswith(b"\n"):
        try:
            part = channel.recv(65536)
        except TimeoutError:
            if os.getppid() == parent:
                continue
            part = b""  # only a fork of the parent holds the socket open
        if not part:
            os._exit(0)
        heard += part
    return json.loads(heard)


def main() -> None:
    """Draw for the parent until it goes away."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    from referee.sim.camera import Easel

    channel = socket.socket(fileno=0)
    channel.settimeout(ORPHAN_CHECK)
    setup = next_order(channel, os.getppid())
    order = Order.parse(setup["order"])
    easel = Easel(**vars(order))
    easel.draw(np.zeros((1, easel.nq)), np.zeros((1, 3)), None)  # the driver compiles at its first picture
    memory: mmap.mmap | None = None
    channel.sendall(_ANSWER)
    while True:
        task = next_order(channel, setup["parent"])
        if memory is None or len(memory) < task["size"]:
            memory = mmap.mmap(setup["file"], task["size"])
        rows = np.frombuffer(memory, np.float64, task["rows"][0] * task["rows"][1]).reshape(task["rows"])
        images = _images(memory, task["rows"], len(task["chosen"]), order.pixels)
        easel.draw(*_unpack(rows, task["looks"]), task["chosen"], out=images)
        channel.sendall(_ANSWER)


if __name__ == "__main__":
    try:
        main()
    finally:
        # Some drivers crash while the interpreter shuts down, and nobody wants to hear of it.
        os._exit(1)
