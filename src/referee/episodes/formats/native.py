"""The native format: one safetensors file per episode, memory-mapped when read. It holds arrays and JSON, no code."""

from __future__ import annotations

import contextlib
import io
import json
import math
import mmap
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from referee import checksums
from referee.episodes.episode import Episode, EpisodeError, Meta

SUFFIX = ".safetensors"
FORMAT = "referee-episode-1"
DATA_SUM, QUICK_SUM, HEADER_SUM = "crc32", "page_sum", "header_crc32"
"""Metadata: checksums of the data, which the second makes quick to check in large files (`checksums.page_sum`), and of
all that stands before the data with `NO_SUM` in place of this one."""
NO_SUM = "00000000"
_HEADER_KEY = f'"{HEADER_SUM}":"'.encode()
CHANGED = "has changed since it was written (checksum): bring it back from a copy, or move it away"
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


def read(path: Path, *, verify: bool = False) -> Episode:
    """The episode in a file, its arrays views of the mapped file; or one line that names it.

    The header (names, shapes, meta) is always checked. verify: read all bytes, and check them too.
    """
    with naming(path):
        arrays, metadata = read_arrays(path, verify=verify)
        if metadata.get("format") != FORMAT:
            raise EpisodeError(f"is not an episode ({metadata.get('format', 'no format')} instead of {FORMAT})")
        return Episode.from_arrays(arrays, meta_of(metadata)).validate()


def read_header(path: Path) -> tuple[dict[str, Any], Meta]:
    """Names, types and shapes of the arrays, and the meta, without mapping the data."""
    with naming(path), path.open("rb") as file:
        entries, metadata, _ = _header(file, path.stat().st_size)
        return entries, meta_of(metadata)


def verify(path: Path) -> bool:
    """Raise unless the file is whole: it fits its header, and all bytes are as they were written.

    Returns whether it carries checksums of everything; files of older versions do not.
    """
    read(path, verify=True)
    with naming(path), path.open("rb") as file:
        _, metadata, start = _header(file, path.stat().st_size)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if metadata.get(DATA_SUM) not in (None, checksums.crc32(memoryview(mapped)[start:])):
            raise EpisodeError(CHANGED)
        return {DATA_SUM, HEADER_SUM} <= metadata.keys()


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors within say which file it is."""
    try:
        yield
    except (EpisodeError, OSError, ValueError, RecursionError) as error:
        raise EpisodeError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


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
    quick = {} if size < SMALL else {QUICK_SUM: _quick_sum(parts)}
    about = json.dumps({**metadata, DATA_SUM: f"{crc:08x}", **quick, HEADER_SUM: NO_SUM}, separators=(",", ":"))
    text = f'{{{entries}{"," if entries else ""}"__metadata__":{about}}}'.encode()
    text += b" " * (-len(text) % 8)
    head = struct.pack("<Q", len(text)) + text
    place = head.rindex(_HEADER_KEY) + len(_HEADER_KEY)
    head = head[:place] + checksums.crc32(head).encode() + head[place + len(NO_SUM) :]
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


def read_arrays(path: Path, *, verify: bool = False) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays of a safetensors file as read-only views of the mapped file, and its metadata.

    verify: check all bytes against the checksum, where there is one.
    """
    with path.open("rb") as file:
        entries, metadata, start = _header(file, path.stat().st_size)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if verify and not _is_whole(memoryview(mapped)[start:], entries, metadata):
        raise EpisodeError(CHANGED)
    arrays = {}
    for name, entry in entries.items():
        dtype = np.dtype(_DTYPES[entry["dtype"]])
        count = (entry["data_offsets"][1] - entry["data_offsets"][0]) // dtype.itemsize
        flat = np.frombuffer(mapped, dtype, count, start + entry["data_offsets"][0])
        arrays[name] = flat.reshape(entry["shape"])
    return arrays, metadata


def _is_whole(data: memoryview, entries: Mapping[str, Any], metadata: Mapping[str, str]) -> bool:
    """Whether data has the sums that the metadata name: the quick one, else the other; True where there is none."""
    if QUICK_SUM not in metadata:
        return metadata.get(DATA_SUM) in (None, checksums.crc32(data))
    places = sorted(entry["data_offsets"] for entry in entries.values())
    parts = [data[begin:end] for begin, end in places]
    return sum(map(len, parts)) == len(data) and metadata[QUICK_SUM] == _quick_sum(parts)


def _quick_sum(parts: Sequence[memoryview]) -> str:
    """Of arrays that follow each other in a file."""
    return checksums.page_sum("".join(map(checksums.page_sum, parts)).encode())


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
    text = file.read(length)
    header = json.loads(text)
    if not isinstance(header, dict):
        raise EpisodeError("has no safetensors header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise EpisodeError("has broken metadata")
    _check_header(first + text, metadata)
    end = size - 8 - length
    for name, entry in header.items():
        if not _is_sound(entry, end):
            raise EpisodeError(f"array {name} does not fit the file: it is cut off or broken")
    return header, metadata, 8 + length


def _check_header(head: bytes, metadata: Mapping[str, str]) -> None:
    """Raise unless the header is as it was written, where it carries a checksum."""
    if HEADER_SUM in metadata:
        place = head.rfind(_HEADER_KEY) + len(_HEADER_KEY)
        written, blank = head[place : place + len(NO_SUM)], NO_SUM.encode()
        if checksums.crc32(head[:place] + blank + head[place + len(NO_SUM) :]).encode() != written:
            raise EpisodeError(CHANGED)
    elif any(name != DATA_SUM and re.fullmatch("[0-9a-f]{8}|[0-9a-f]{16}", value) for name, value in metadata.items()):
        raise EpisodeError(CHANGED)  # the name of a checksum was hit


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
