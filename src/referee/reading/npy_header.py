"""The header of a `.npy`: one line of Python that is read here as text, by any number of threads at once.

Python's own parser is the usual way, but some of its versions fail now and then when two threads use it.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

from referee.errors import EpisodeError
from referee.reading import pickle_types

MAX_HEADER = 10_000
_ENTRY = re.compile(
    r"""\s*['"](?P<name>descr|fortran_order|shape)['"]\s*:\s*
    (?:['"](?P<code>[<>|=]?\w{1,16})['"] | (?P<flag>True|False) | \((?P<sides>[\d,\sL]*)\))\s*(?:,|$)""",
    re.VERBOSE | re.ASCII,
)


class Header(NamedTuple):
    """What stands before the content of a `.npy`, and where that begins."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    start: int


def read_header(data: memoryview) -> Header:
    """The header with which these bytes begin; nothing is allocated for what it promises."""
    if bytes(data[:6]) != b"\x93NUMPY" or len(data) < 12 or data[6] not in (1, 2, 3):
        raise EpisodeError("is cut off or not a .npy file")
    start = 10 if data[6] == 1 else 12
    length = int.from_bytes(data[8:start], "little")
    if length > min(MAX_HEADER, len(data) - start):
        raise EpisodeError("is cut off or has a broken header")
    found = _entries(bytes(data[start : start + length]).decode("latin1").strip())
    code, flag, sides = found["descr"]["code"], found["fortran_order"]["flag"], found["shape"]["sides"]
    if code is None or flag is None or sides is None or not pickle_types.CODE.fullmatch(code.lstrip("<>|=")):
        raise EpisodeError("has a broken header, or holds records, which data has no need of")
    try:
        dtype = np.dtype(code)
        shape = tuple(int(side.strip().rstrip("L")) for side in sides.rstrip(", ").split(",") if side)
    except (ValueError, TypeError):
        raise EpisodeError("has a broken header") from None
    pickle_types.elements(shape)
    return Header(dtype, shape, flag == "True", start + length)


def _entries(text: str) -> dict[str, re.Match[str]]:
    """The three entries of a dict, each once and nothing else."""
    found: dict[str, re.Match[str]] = {}
    inner = text[1:-1].rstrip() if text[:1] == "{" and text[-1:] == "}" else ""
    place = 0
    while place < len(inner):
        entry = _ENTRY.match(inner, place)
        if entry is None or entry["name"] in found:
            break
        found[entry["name"]], place = entry, entry.end()
    if place < len(inner) or len(found) != 3:
        raise EpisodeError("has a broken header")
    return found
