"""Pictures by number: each is kept once, in memory as long as there is room, then in a file that is mapped."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

CHUNK = 256
"""Pictures that are allocated at once."""


class Album:
    """Frames uint8[V,H,W,3] under numbers that are given anew once they are free."""

    def __init__(self, shape: tuple[int, ...], *, memory: float, folder: Path | None = None) -> None:
        """shape: of a frame. memory: bytes; what goes beyond lies in a file within `folder` that has no name."""
        self.shape = tuple(shape)
        self._memory, self._folder = memory, folder
        self._chunks: list[np.ndarray] = []
        self._free: list[int] = []

    @property
    def frame_bytes(self) -> int:
        """Of one frame."""
        return int(np.prod(self.shape))

    @property
    def nbytes(self) -> int:
        """Of all that is allocated."""
        return len(self._chunks) * CHUNK * self.frame_bytes

    @property
    def mapped(self) -> int:
        """Frames that lie in a file."""
        return sum(len(chunk) for chunk in self._chunks if isinstance(chunk, np.memmap))

    def add(self, frames: np.ndarray) -> np.ndarray:
        """Keep frames uint8[n,V,H,W,3]; returns their numbers int32[n]."""
        while len(self._free) < len(frames):
            first = len(self._chunks) * CHUNK
            self._chunks.append(self._room())
            self._free += range(first + CHUNK - 1, first - 1, -1)
        ids = np.array([self._free.pop() for _ in range(len(frames))], np.int32)
        for chunk, rows, within in self._places(ids):
            chunk[within] = frames[rows]
        return ids

    def take(self, ids: np.ndarray) -> np.ndarray:
        """The frames of numbers int[n], uint8[n,V,H,W,3]."""
        found = np.empty((len(ids), *self.shape), np.uint8)
        for chunk, rows, within in self._places(np.asarray(ids)):
            found[rows] = chunk[within]
        return found

    def free(self, ids: np.ndarray) -> None:
        """Nobody needs these frames any more."""
        self._free += np.asarray(ids).tolist()

    def _places(self, ids: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """(chunk, rows of `ids` that it holds, where in it)."""
        number, within = ids // CHUNK, ids % CHUNK
        return [
            (self._chunks[i], rows, within[rows]) for i in np.unique(number) for rows in [np.flatnonzero(number == i)]
        ]

    def _room(self) -> np.ndarray:
        shape = (CHUNK, *self.shape)
        if self._folder is None or self.nbytes + CHUNK * self.frame_bytes <= self._memory:
            return np.zeros(shape, np.uint8)
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._folder) as file:  # gone with the process, however that ends
            file.truncate(CHUNK * self.frame_bytes)
            return np.memmap(file, np.uint8, "r+", shape=shape)
