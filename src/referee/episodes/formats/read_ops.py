"""The ways in which a file can be read, by name: each gives the values or episodes in the file's bytes, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from referee.episodes.formats import npy, parse, pickled

Way = Callable[[memoryview, Path], Iterator[Any]]


def _pickle(data: memoryview, path: Path) -> Iterator[Any]:
    return iter([parse.pickle_value(data)])


def _npy(data: memoryview, path: Path) -> Iterator[Any]:
    return iter([parse.npy_value(data)])


def _torch(data: memoryview, path: Path) -> Iterator[Any]:
    return iter([parse.torch_value(data)])


WAYS: Mapping[str, Way] = {
    "pickle": _pickle,
    "npy": _npy,
    "torch": _torch,
    "pickled episodes": pickled.parse_episodes,
    "npy episodes": npy.parse_episodes,
}
