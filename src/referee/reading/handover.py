"""Values between the process that reads a file and the one that wants it.

Plain values are pickled here and read there by an unpickler that makes arrays and tensors and nothing else. The content
of arrays is not in that pickle: it is a part of the file, which both have mapped, or of a block of shared memory.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from referee.reading import pickle_types
from referee.reading.parse import TensorView

ALIGNMENT = 64
IN_FILE, IN_BLOCK = 0, 1
Part = tuple[int, int, int]
"""Where the content of an array is: in the file or in the block, from which byte on, and how many."""


class Parcel:
    """A value on its way: a pickle of it, where its arrays are, and the content of those that are not in the file."""

    def __init__(self, value: Any, data: memoryview) -> None:
        self.parts: list[Part] = []
        self.contents: list[memoryview] = []
        self.length = 0
        """Bytes of the block that holds the contents, each of them aligned."""
        self._begin = np.frombuffer(data, np.uint8).ctypes.data if len(data) else 0
        self._end = self._begin + len(data)
        buffer = io.BytesIO()
        _Pickler(buffer, self._keep).dump(value)
        self.body = buffer.getvalue()

    def _keep(self, buffer: pickle.PickleBuffer) -> None:
        content = buffer.raw()
        address = np.frombuffer(content, np.uint8).ctypes.data if len(content) else self._begin
        if self._begin <= address and address + len(content) <= self._end:
            self.parts.append((IN_FILE, address - self._begin, len(content)))
            return
        self.parts.append((IN_BLOCK, self.length, len(content)))
        self.contents.append(content)
        self.length += padded(len(content))

    def pieces(self) -> list[bytes | memoryview]:
        """What the block holds, in order."""
        pieces: list[bytes | memoryview] = []
        for content in self.contents:
            pieces.append(content)
            if rest := padded(len(content)) - len(content):
                pieces.append(bytes(rest))
        return pieces


def unpack(body: bytes | memoryview, parts: Sequence[Part], contents: Sequence[Any], data: memoryview) -> Any:
    """The value of a parcel; its arrays are views of the file, or of the contents that came in the block."""
    taken = iter(contents)
    buffers = [data[start : start + length] if place == IN_FILE else next(taken) for place, start, length in parts]
    return _Unpickler(io.BytesIO(body), buffers, data).load()


def lengths(parts: Sequence[Part]) -> list[int]:
    """Of the contents in the block, one after the other; each begins at a multiple of `ALIGNMENT`."""
    return [length for place, _, length in parts if place == IN_BLOCK]


def padded(length: int) -> int:
    """Bytes that a content takes in the block."""
    return -(-length // ALIGNMENT) * ALIGNMENT


class _Pickler(pickle.Pickler):
    """Of plain values, arrays, descriptions of tensors, and views of the file."""

    def __init__(self, file: io.BytesIO, keep: Callable[[pickle.PickleBuffer], None]) -> None:
        super().__init__(file, 5, buffer_callback=keep)

    def reducer_override(self, value: Any) -> Any:
        """How the kinds that are ours are taken apart; numpy knows about its own."""
        kind = type(value)
        if kind is memoryview:
            return _view, (pickle.PickleBuffer(value),)
        if kind is TensorView:
            storage = value.storage
            return _tensor, (storage.kind, storage.start, storage.length, value.offset, value.size, value.stride)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    """Makes what `_Pickler` took apart; any other name is an error."""

    def __init__(self, file: io.BytesIO, buffers: Sequence[memoryview], data: memoryview) -> None:
        super().__init__(file, buffers=buffers)
        self._data = data
        self._bases: dict[tuple[int, str], Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        """What a name stands for."""
        if (module, name) == (__name__, "_tensor"):
            return self._tensor
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        raise pickle.UnpicklingError(f"{module}.{name} is not handed over")

    def _tensor(self, kind: str, start: int, length: int, offset: int, size: Any, stride: Any) -> Any:
        import torch

        base = self._bases.get((start, kind))
        if base is None:
            content = self._data[start : start + length]
            flat = np.frombuffer(content, np.uint8) if length else np.empty(0, np.uint8)
            if kind == "bool":
                flat = (flat != 0).view(np.uint8)
            elif flat.ctypes.data % pickle_types.itemsize(kind):
                flat = flat.copy()
            base = self._bases[start, kind] = torch.from_numpy(flat).view(getattr(torch, kind))
        return base.as_strided(size, stride, offset)


def _view(content: Any) -> memoryview:
    return memoryview(content)


def _tensor(*description: Any) -> None:
    """Only a name: the unpickler makes tensors."""


def _allowed() -> dict[tuple[str, str], Any]:
    """The names in what numpy and this module make of arrays and numbers."""
    names: dict[tuple[str, str], Any] = {(__name__, "_view"): _view}
    samples = [
        np.zeros(2),
        np.zeros((2, 2), order="F"),
        np.zeros(2, object),
        np.float32(1),
        np.str_("a"),
        np.zeros(4)[::2],
    ]
    for sample in samples:
        for protocol in (4, 5):
            made: Any = sample.__reduce_ex__(protocol)[0]
            names[made.__module__, made.__qualname__] = made
    plain = {("numpy", "ndarray"): np.ndarray, ("numpy", "dtype"): np.dtype, ("builtins", "complex"): complex}
    return names | plain


_ALLOWED = _allowed()
