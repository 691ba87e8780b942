"""Loads files that strangers wrote, or nobody: `.pkl`, `.npy` and `.pt`. Nothing in them can run.

All three go through `pickle_reader`: only plain containers, numbers, text, arrays and tensors come out, sizes are
checked against the file before anything is allocated, and large arrays stay mapped. This happens in a process of its
own (see `client`), whose memory and time are limited by the size of the file. REFEREE_READER=inline reads in this
process instead, for a debugger.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from referee.reading import client, parse
from referee.reading.handover import Parcel, unpack
from referee.reading.naming import naming
from referee.reading.npy_header import read_header
from referee.reading.ways import way_named

READER = "REFEREE_READER"


def load_pickle(path: Path) -> Any:
    """The value in a pickle; tensors come out as arrays, and bytes of more than 4 KiB as views of the file."""
    return _value("pickle", path)


def load_npy(path: Path) -> Any:
    """The array in a `.npy`, mapped; or the one value that an array of objects holds."""
    with naming(path):
        data = _map(path)
        if read_header(data).dtype.kind != "O":
            return parse.npy_value(data)  # nothing in it is a program
    return _value("npy", path)


def load_torch(path: Path) -> Any:
    """The value in a `.pt`: plain containers and CPU tensors that are views of the mapped file.

    It reads what `torch.load(weights_only=True, mmap=True)` reads of such files, and looks at sizes first.
    """
    return _value("torch", path)


def load_all(way: str, paths: Iterable[Path]) -> Iterator[Any]:
    """All values in some files, in order. way: see `ways.way_named`."""
    if not _inline():
        yield from client.read_all(way, paths)
        return
    for path in paths:
        with naming(path):
            yield from way_named(way)(_map(path), path)


def _value(way: str, path: Path) -> Any:
    if not _inline():
        return client.read_value(way, path)
    with naming(path):
        data = _map(path)
        parcel = Parcel(next(way_named(way)(data, path)), data)
        return unpack(parcel.body, parcel.parts, [bytearray(each) for each in parcel.contents], data)


def _inline() -> bool:
    return os.environ.get(READER) == "inline"


def _map(path: Path) -> memoryview:
    handle = parse.open_file(path)
    try:
        return parse.map_file(handle)
    finally:
        os.close(handle)
