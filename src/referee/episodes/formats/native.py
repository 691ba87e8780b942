"""The native format: one safetensors file per episode, memory-mapped when read. It holds arrays and JSON, no code."""

from __future__ import annotations

import io
import json
import math
import mmap
import struct
import zlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from referee.episodes.episode import Episode, EpisodeError, Meta

SUFFIX = ".safetensors"
FORMAT = "referee-episode-1"
MAX_HEADER = 4 << 20
SMALL = 1 << 18
_DTYPES = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "U32": np.uint32,
    "I32": np.int32, "U64": np.uint64, "I64": np.int64, "F16": np.float16, "F32": np.float32, "F64": np.float64,
}  # fmt: skip
_NAMES = {np.dtype(kind): name for name, kind in _DTYPES.items()}


def write(path: Path, episode: Episode) -> None:
    """Write the file at `path` itself; to name it atomically is the caller's part (`EpisodeStore.append`)."""
    with path.open("wb") as file:
        write_to(file, episode)


def write_to(file: BinaryIO | io.FileIO, episode: Episode) -> int:
    """Write an episode to an open file; returns the number of bytes."""
    return write_arrays(file, episode.arrays(), {"format": FORMAT, "meta": json.dumps(episode.meta.to_json())})


def read(path: Path) -> Episode:
    """The episode in a file, its arrays views of the mapped file; or one line that names it."""
    try:
        arrays, metadata = read_arrays(path)
        if metadata.get("format") != FORMAT:
            raise EpisodeError(f"is not an episode ({metadata.get('format', 'no format')} instead of {FORMAT})")
        return Episode.from_arrays(arrays, meta_of(metadata)).validate()
    except (EpisodeError, OSError, ValueError, RecursionError) as error:
        raise EpisodeError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def read_header(path: Path) -> tuple[dict[str, Any], Meta]:
    """Names, types and shapes of the arrays, and the meta, without mapping the data."""
    try:
        with path.open("rb") as file:
            entries, metadata, _ = _header(file, path.stat().st_size)
        return entries, meta_of(metadata)
    except (EpisodeError, OSError, ValueError, RecursionError) as error:
        raise EpisodeError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def verify(path: Path) -> None:
    """Raise unless the file is whole: it fits its header, and its bytes have the checksum that was written."""
    read(path)
    with path.open("rb") as file:
        _, metadata, start = _header(file, path.stat().st_size)
        file.seek(start)
        crc = 0
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
    if metadata.get("crc32") != f"{crc:08x}":
        raise EpisodeError(f"{path}: its bytes have changed since it was written (checksum)")


def write_arrays(file: BinaryIO | io.FileIO, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> int:
    """A safetensors file with those arrays, metadata, and a checksum of the data; returns the number of bytes."""
    # Wide types first, so that every array is aligned.
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    parts = [_bytes(np.ascontiguousarray(arrays[name])) for name in order]
    size = sum(map(len, parts))
    if size < SMALL:  # one call instead of many
        parts = [memoryview(b"".join(parts))]
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    entries = _entries(tuple((name, arrays[name].dtype, arrays[name].shape) for name in order))
    about = json.dumps({**metadata, "crc32": f"{crc:08x}"}, separators=(",", ":"))
    text = f'{{{entries}{"," if entries else ""}"__metadata__":{about}}}'.encode()
    text += b" " * (-len(text) % 8)
    head = struct.pack("<Q", len(text)) + text
    if size < SMALL:
        _write(file, head + parts[0])
    else:
        for part in (memoryview(head), *parts):
            _write(file, part)
    return len(head) + size


@lru_cache(maxsize=256)
def _entries(arrays: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]) -> str:
    """What the header says about arrays that follow each other; episodes of a run often look alike."""
    header: dict[str, Any] = {}
    start = 0
    for name, dtype, shape in arrays:
        stop = start + dtype.itemsize * math.prod(shape)
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    return json.dumps(header, separators=(",", ":"))[1:-1]


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays of a safetensors file as read-only views of the mapped file, and its metadata."""
    with path.open("rb") as file:
        entries, metadata, start = _header(file, path.stat().st_size)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    arrays = {}
    for name, entry in entries.items():
        dtype = np.dtype(_DTYPES[entry["dtype"]])
        count = (entry["data_offsets"][1] - entry["data_offsets"][0]) // dtype.itemsize
        flat = np.frombuffer(mapped, dtype, count, start + entry["data_offsets"][0])
        arrays[name] = flat.reshape(entry["shape"])
    return arrays, metadata


def meta_of(metadata: Mapping[str, str]) -> Meta:
    """The meta in a file's metadata."""
    values = json.loads(metadata.get("meta", "null"))
    if not isinstance(values, dict):
        raise EpisodeError("holds no meta")
    return Meta.from_json(values)


def _write(file: BinaryIO | io.FileIO, data: bytes | memoryview) -> None:
    """All of it: an unbuffered file may take less at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) or 0 :]


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _header(file: BinaryIO, size: int) -> tuple[dict[str, Any], dict[str, str], int]:
    """Entries, metadata and where the data begins; everything is checked against the file's size."""
    first = file.read(8)
    length = struct.unpack("<Q", first)[0] if len(first) == 8 else -1
    if not 0 < length <= min(MAX_HEADER, size - 8):
        raise EpisodeError("is cut off or not a safetensors file")
    header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise EpisodeError("has no safetensors header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise EpisodeError("has broken metadata")
    end = size - 8 - length
    for name, entry in header.items():
        if not _is_sound(entry, end):
            raise EpisodeError(f"array {name} does not fit the file: it is cut off or broken")
    return header, metadata, 8 + length


def _is_sound(entry: Any, end: int) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str) or entry["dtype"] not in _DTYPES:
        return False
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2 or len(shape) > 32:
        return False
    size = np.dtype(_DTYPES[entry["dtype"]]).itemsize
    for extent in shape:
        size *= extent
    return offsets[1] <= end and offsets[1] - offsets[0] == size


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**48 for value in values)
