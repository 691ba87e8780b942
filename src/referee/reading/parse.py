"""The bytes of a `.pkl`, `.npy` or `.pt` file as a value; `safe_load` decides in which process it is read.

Sizes are checked against the file before anything is allocated. Long arrays stay views of the file. A tensor is only
described: the process that asked for it makes it, so that this one needs no torch.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from referee.errors import EpisodeError
from referee.reading import pickle_types
from referee.reading.npy_header import read_header
from referee.reading.pickle_reader import Budget, Reader

_ZIP_ERRORS = (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, EOFError, KeyError)
_ENTRY_BYTES, _TENSOR_BYTES = 1024, 512


class Place(NamedTuple):
    """Where something stands in a file."""

    start: int
    length: int


class TensorView:
    """A tensor of a `.pt`: which bytes of the file it shows, and how."""

    __slots__ = ("offset", "size", "storage", "stride")

    def __init__(self, storage: StoredElements, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
        self.storage, self.offset, self.size, self.stride = storage, offset, size, stride

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.size) * pickle_types.itemsize(self.storage.kind)


class StoredElements(pickle_types.Storage):
    """A storage of a `.pt`; its place is known once all of an older file was read."""

    def __init__(self, kind: str, length: int, start: int = -1) -> None:
        super().__init__(kind, memoryview(b""))
        self.length, self.start = length, start

    @property
    def byte_count(self) -> int:
        """Bytes of its elements."""
        return self.length


def open_file(path: Path) -> int:
    """A descriptor of a file, which must be one: a pipe or a device would never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    kind = os.fstat(handle).st_mode
    if not stat.S_ISREG(kind):
        os.close(handle)
        raise EpisodeError("is a folder, not a file" if stat.S_ISDIR(kind) else "is no file")
    return handle


def map_file(handle: int) -> memoryview:
    """The bytes of a file; writing to them changes nobody's file."""
    size = os.fstat(handle).st_size
    if not size:
        raise EpisodeError("is empty")
    return memoryview(mmap.mmap(handle, size, access=mmap.ACCESS_COPY))


def releaser(data: memoryview) -> Callable[[], None]:
    """A function that lets go of the memory in which the file is mapped; it undoes changes made to its arrays."""

    def release() -> None:
        if isinstance(data.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            data.obj.madvise(mmap.MADV_DONTNEED)

    return release


def pickle_value(data: memoryview) -> Any:
    """The value in a pickle; tensors come out as arrays, and bytes of more than 4 KiB as views of the file."""
    return Reader(data, pickle_types.NAMES, Budget(len(data)), release=releaser(data)).load()


def npy_value(data: memoryview) -> Any:
    """The array in a `.npy`, as a view; or the one value that an array of objects holds."""
    dtype, shape, fortran, start = read_header(data)
    budget = Budget(len(data))
    if dtype.kind == "O":
        value = Reader(data, pickle_types.NAMES, budget, position=start).load()
        if not isinstance(value, np.ndarray) or value.dtype.kind != "O" or value.size != 1:
            raise EpisodeError("holds an array of objects, but one dict is needed")
        return value.item()
    count = pickle_types.elements(shape)
    if count * dtype.itemsize != len(data) - start:
        raise EpisodeError(f"holds {len(data) - start} bytes of content, but its header says {shape} of {dtype}")
    flat = np.frombuffer(data, dtype, count, start) if count else np.empty(0, dtype)
    return pickle_types.shaped(budget, flat, shape, fortran)


def torch_value(data: memoryview) -> Any:
    """The value in a `.pt`, in which each tensor is a `TensorView`."""
    return _zipped(data) if bytes(data[:2]) == b"PK" else _legacy(data)


def _zipped(data: memoryview) -> Any:
    budget = Budget(len(data))
    records = _zip_records(data, budget)
    folder = next((name.removesuffix("data.pkl") for name in records if name.endswith("data.pkl")), None)
    if folder is None:
        raise EpisodeError("is no file of torch: it holds no data.pkl")

    def content(name: str) -> memoryview:
        start, length = records[f"{folder}{name}"]
        return data[start : start + length]

    if f"{folder}byteorder" in records and bytes(content("byteorder")) != b"little":
        raise EpisodeError("was written on a machine with another byte order")
    storages: dict[tuple[str, str], StoredElements] = {}

    def find(reference: Any) -> StoredElements:
        target = pickle_types.reference(reference)
        record = records.get(f"{folder}data/{target.key}")
        if record is None or target.numel * pickle_types.itemsize(target.kind) != record.length:
            raise EpisodeError(f"is cut off or broken: storage {target.key[:50]} does not fit")
        if (target.key, target.kind) not in storages:
            budget.spend(_TENSOR_BYTES)
            storages[target.key, target.kind] = StoredElements(target.kind, record.length, record.start)
        return storages[target.key, target.kind]

    return Reader(content("data.pkl"), _TORCH_NAMES, budget, persistent=find).load()


def _legacy(data: memoryview) -> Any:
    """The format of torch before 1.6: five pickles, then for each key the number of elements and these."""
    budget = Budget(len(data))
    storages: dict[str, StoredElements] = {}

    def find(reference: Any) -> StoredElements:
        target = pickle_types.reference(reference)
        length = target.numel * pickle_types.itemsize(target.kind)
        if target.key not in storages:
            budget.spend(_TENSOR_BYTES)
            storages[target.key] = StoredElements(target.kind, length)
        if (storages[target.key].kind, storages[target.key].length) != (target.kind, length):
            raise EpisodeError(f"is broken: storage {target.key[:50]} does not fit")
        return storages[target.key]

    reader = Reader(data, _TORCH_NAMES, budget, persistent=find)
    *_, value, keys = pickle_types.legacy_head(reader)
    if type(keys) is not list or not all(type(key) is str for key in keys) or not storages.keys() <= set(keys):
        raise EpisodeError("is broken: it does not list its storages")
    for key in keys:
        storage = storages.get(key)
        if storage is None or reader.size(8) * pickle_types.itemsize(storage.kind) != storage.length:
            raise EpisodeError(f"is cut off or broken: storage {key[:50]} does not fit")
        storage.start = reader.position
        reader.take(storage.length)
    reader.check(value)
    return value


def _zip_records(data: memoryview, budget: Budget) -> dict[str, Place]:
    """Where the content of an archive stands, by name; nothing in it may be packed, so that nothing can swell."""
    records = {}
    try:
        with zipfile.ZipFile(_File(data)) as archive:
            entries = archive.infolist()
    except _ZIP_ERRORS as error:
        raise EpisodeError(f"is cut off or a broken archive ({str(error)[:100]})") from None
    budget.spend(_ENTRY_BYTES * len(entries))
    for entry in entries:
        head = data[entry.header_offset : entry.header_offset + 30] if entry.header_offset >= 0 else b""
        if entry.compress_type != zipfile.ZIP_STORED or len(head) < 30:
            raise EpisodeError("is a packed or broken archive, which torch does not write: refused")
        start = entry.header_offset + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
        if start + entry.file_size > len(data):
            raise EpisodeError("is cut off or a broken archive")
        records[entry.filename] = Place(start, entry.file_size)
    return records


class _File:
    """Just enough of a file over bytes that are mapped already."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._position = data, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        """As of files."""
        position = offset + (0, self._position, len(self._data))[whence]
        if position < 0:
            raise OSError("before the beginning")
        self._position = position
        return position

    def tell(self) -> int:
        """As of files."""
        return self._position

    def read(self, count: int = -1) -> bytes:
        """As of files."""
        end = len(self._data) if count < 0 else self._position + count
        chunk = bytes(self._data[self._position : end])
        self._position += len(chunk)
        return chunk


def _tensor(reader: Reader, arguments: tuple[Any, ...]) -> Any:
    if len(arguments) not in (6, 7):
        raise EpisodeError("holds a broken tensor")
    storage, offset, size, stride = arguments[:4]
    pickle_types.check_tensor(storage, offset, size, stride)
    if not isinstance(storage, StoredElements):
        raise EpisodeError("holds a tensor without a storage")
    reader.budget.spend(_TENSOR_BYTES)
    return TensorView(storage, offset, size, stride)


def _parameter(reader: Reader, arguments: tuple[Any, ...]) -> Any:
    if len(arguments) != 3 or not isinstance(arguments[0], TensorView):
        raise EpisodeError("holds a broken parameter")
    return arguments[0]


def _size(reader: Reader, arguments: tuple[Any, ...]) -> Any:
    if len(arguments) != 1 or type(arguments[0]) not in (list, tuple):
        raise EpisodeError("holds a broken size")
    reader.budget.spend(64 + 8 * len(arguments[0]))
    return tuple(arguments[0])


_TORCH_NAMES: Mapping[str, pickle_types.Build | None] = {
    **{name: build for name, build in pickle_types.NAMES.items() if name != "torch.storage._load_from_bytes"},
    **{f"torch.{name}": None for name in pickle_types.STORAGES},
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch.Size": _size,
}
"""The allow-list of a `.pt`."""
