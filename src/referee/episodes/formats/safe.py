"""Loads files that strangers wrote, or nobody: `.pkl`, `.npy` and `.pt`. Nothing in them can run.

All three go through `inert`: only plain containers, numbers, text, arrays and tensors come out, sizes are checked
against the file before anything is allocated, and large arrays stay mapped.
"""

from __future__ import annotations

import mmap
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from referee.episodes.episode import EpisodeError
from referee.episodes.formats import rebuild
from referee.episodes.formats.frames import naming
from referee.episodes.formats.inert import Budget, Reader
from referee.episodes.formats.npy_header import read_header

_ZIP_ERRORS = (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, EOFError, KeyError)


def load_pickle(path: Path) -> Any:
    """The value in a pickle; tensors come out as arrays, and bytes of more than 4 KiB as views of the file."""
    return open_pickle(path)[0]


def open_pickle(path: Path) -> tuple[Any, Callable[[], None]]:
    """The same, and a function that lets go of the memory in which the file is mapped, to be read anew when needed.

    It undoes changes made to arrays of the value.
    """
    with naming(path):
        data = _map(path)

        def release() -> None:
            if isinstance(data.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
                data.obj.madvise(mmap.MADV_DONTNEED)

        return Reader(data, rebuild.NAMES, Budget(len(data)), release=release).load(), release


def load_npy(path: Path) -> Any:
    """The array in a `.npy`, mapped; or the one value that an array of objects holds."""
    with naming(path):
        data = _map(path)
        dtype, shape, fortran, start = read_header(data)
        budget = Budget(len(data))
        if dtype.kind == "O":
            value = Reader(data, rebuild.NAMES, budget, position=start).load()
            if not isinstance(value, np.ndarray) or value.dtype.kind != "O" or value.size != 1:
                raise EpisodeError("holds an array of objects, but one dict is needed")
            return value.item()
        count = rebuild.elements(shape)
        if count * dtype.itemsize != len(data) - start:
            raise EpisodeError(f"holds {len(data) - start} bytes of content, but its header says {shape} of {dtype}")
        flat = np.frombuffer(data, dtype, count, start) if count else np.empty(0, dtype)
        return rebuild.shaped(budget, flat, shape, fortran)


def load_torch(path: Path) -> Any:
    """The value in a `.pt`: plain containers and CPU tensors that are views of the mapped file.

    It reads what `torch.load(weights_only=True, mmap=True)` reads of such files, in half of the time where they
    hold many tensors; and it looks at sizes first.
    """
    with naming(path):
        data = _map(path)
        records = _zip_records(data)
        folder = next((name.removesuffix("data.pkl") for name in records if name.endswith("data.pkl")), None)
        if folder is None:
            raise EpisodeError("is no file of torch: it holds no data.pkl")
        if bytes(records.get(f"{folder}byteorder", b"little")) != b"little":
            raise EpisodeError("was written on a machine with another byte order")
        budget = Budget(len(data))
        storages: dict[str, rebuild.Storage] = {}

        def find(said: Any) -> rebuild.Storage:
            wanted = rebuild.reference(said)
            record = records.get(f"{folder}data/{wanted.key}")
            if record is None or wanted.numel * rebuild.itemsize(wanted.kind) != len(record):
                raise EpisodeError(f"is cut off or broken: storage {wanted.key[:50]} does not fit")
            return storages.setdefault(wanted.key + wanted.kind, rebuild.Storage(wanted.kind, record))

        return Reader(records[f"{folder}data.pkl"], _torch_names(), budget, persistent=find).load()


def _map(path: Path) -> memoryview:
    """The bytes of a file; writing to them changes nobody's file."""
    with path.open("rb") as file:
        size = path.stat().st_size
        if not size:
            raise EpisodeError("is empty")
        return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY))


def _zip_records(data: memoryview) -> dict[str, memoryview]:
    """The content of an archive by name; nothing in it may be packed, so that nothing can swell."""
    if bytes(data[:2]) != b"PK":
        raise EpisodeError("is cut off, or no file that torch 1.6 or later has saved")
    records = {}
    try:
        with zipfile.ZipFile(_File(data)) as archive:
            entries = archive.infolist()
    except _ZIP_ERRORS as error:
        raise EpisodeError(f"is cut off or a broken archive ({str(error)[:100]})") from None
    for entry in entries:
        head = data[entry.header_offset : entry.header_offset + 30]
        if entry.compress_type != zipfile.ZIP_STORED or entry.header_offset < 0 or len(head) < 30:
            raise EpisodeError("is a packed or broken archive, which torch does not write: refused")
        start = entry.header_offset + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
        if start + entry.file_size > len(data):
            raise EpisodeError("is cut off or a broken archive")
        records[entry.filename] = data[start : start + entry.file_size]
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


def _torch_names() -> Mapping[str, rebuild.Build | None]:
    """The allow-list of a `.pt`: tensors are made as tensors here."""
    import torch

    def tensor(reader: Reader, arguments: tuple[Any, ...]) -> Any:
        if len(arguments) not in (6, 7):
            raise EpisodeError("holds a broken tensor")
        storage, offset, size, stride = arguments[:4]
        rebuild.check_tensor(storage, offset, size, stride)
        reader.budget.spend(512)
        if storage.base is None:
            flat = np.frombuffer(storage.data, np.uint8) if len(storage.data) else np.empty(0, np.uint8)
            if storage.kind == "bool" or flat.ctypes.data % rebuild.itemsize(storage.kind):
                reader.budget.spend(flat.nbytes)
                flat = (flat != 0).view(np.uint8) if storage.kind == "bool" else flat.copy()
            storage.base = torch.from_numpy(flat).view(getattr(torch, storage.kind))
        return storage.base.as_strided(size, stride, offset)

    def parameter(reader: Reader, arguments: tuple[Any, ...]) -> Any:
        if len(arguments) != 3 or not isinstance(arguments[0], torch.Tensor):
            raise EpisodeError("holds a broken parameter")
        return arguments[0]

    def size(reader: Reader, arguments: tuple[Any, ...]) -> Any:
        if len(arguments) != 1 or type(arguments[0]) not in (list, tuple):
            raise EpisodeError("holds a broken size")
        reader.budget.spend(64 + 8 * len(arguments[0]))
        return tuple(arguments[0])

    return {
        **rebuild.NAMES,
        **{f"torch.{name}": None for name in rebuild.STORAGES},
        "torch._utils._rebuild_tensor_v2": tensor,
        "torch._utils._rebuild_parameter": parameter,
        "torch.Size": size,
    }
