"""The ways in which a file can be read, by name: each gives the values in the file's bytes, one by one."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from referee.reading import parse

Way = Callable[[memoryview, Path], Iterator[Any]]


def _pickle(data: memoryview, path: Path) -> Iterator[Any]:
    return iter([parse.pickle_value(data)])


def _npy(data: memoryview, path: Path) -> Iterator[Any]:
    return iter([parse.npy_value(data)])


def _torch(data: memoryview, path: Path) -> Iterator[Any]:
    return iter([parse.torch_value(data)])


WAYS: dict[str, Way] = {"pickle": _pickle, "npy": _npy, "torch": _torch}


def way_named(name: str) -> Way:
    """One of `WAYS`, or the function at `package.module:function`, which gives plain values and arrays."""
    found: Way = WAYS[name] if name in WAYS else pkgutil.resolve_name(name)
    return found
