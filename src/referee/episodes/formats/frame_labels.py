"""Labels files: which frames of imported episodes are a success.

CSV with a header, or JSON lines with the same names. A row labels one frame, or a span of frames (both ends included):

    episode,frame,success     episode,start,end,success     {"episode": "run_7", "frame": 41, "success": true}
    run_7,41,1                run_7,30,41,1                 {"episode": "run_8", "start": 0, "end": 9, "success": 0}

Both kinds may stand in one file (the columns of the other kind are left empty). Frames count from 0. `success` is 1, 0,
true or false. A later row overrides an earlier one. In an episode that has rows, frames without a row are no success;
an episode without rows stays unlabelled.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from referee.episodes.episode import EpisodeError
from referee.episodes.formats.frames import naming

_VALUES = {"1": True, "true": True, "0": False, "false": False}
MAX_NAME = 1000
MAX_LABEL_BYTES = 256 << 20


@dataclass(frozen=True)
class FrameLabel:
    """One row: frames `start` to `end`, both included, are (not) a success."""

    episode: str
    start: int
    end: int
    success: bool
    row: str
    """Where it stands, for messages."""


class FrameLabels:
    """The rows of a labels file, by episode; None holds no rows."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._rows: dict[str, list[FrameLabel]] = {}
        if path is not None:
            with naming(path):
                for label in _read(path):
                    self._rows.setdefault(label.episode, []).append(label)

    def check_names(self, known: Iterable[str]) -> None:
        """Refuse rows about episodes that are not there."""
        known = list(known)
        for name, rows in self._rows.items():
            if name not in known:
                some = ", ".join(known[:5]) + (", …" if len(known) > 5 else "")
                raise EpisodeError(f"{self.path}: {rows[0].row} is about {name!r}, but the episodes are {some}")

    def success(self, name: str, states: int) -> np.ndarray | None:
        """bool[states] for an episode, or None where it has no rows."""
        rows = self._rows.get(name)
        if rows is None:
            return None
        success = np.zeros(states, bool)
        for label in rows:
            if label.end >= states:
                raise EpisodeError(
                    f"{self.path}: {label.row} is about frame {label.end} of {name!r}, "
                    f"whose frames are 0 to {states - 1}"
                )
            success[label.start : label.end + 1] = label.success
        return success


def _read(path: Path) -> list[FrameLabel]:
    if path.suffix not in (".csv", ".jsonl"):
        raise EpisodeError("a labels file ends in .csv or .jsonl")
    if path.stat().st_size > MAX_LABEL_BYTES:
        raise EpisodeError("is too large for a labels file")
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix == ".csv":
        reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
        if "episode" not in (reader.fieldnames or ()) or "success" not in (reader.fieldnames or ()):
            raise EpisodeError("its first line must be episode,frame,success or episode,start,end,success")
        return [_label(row, f"line {reader.line_num}") for row in reader]
    labels = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise EpisodeError(f"line {number} is not a JSON object")
            labels.append(_label(row, f"line {number}"))
    return labels


def _label(row: Mapping[str, Any], where: str) -> FrameLabel:
    values = {key: str(value).strip() for key, value in row.items() if value is not None and str(value).strip()}
    success = _VALUES.get(values.get("success", "").lower())
    if success is None or "episode" not in values:
        raise EpisodeError(f"{where} needs an episode, and a success that is 1, 0, true or false")
    if "frame" in values and not {"start", "end"} & values.keys():
        first = last = _count(values["frame"], where)
    elif "frame" not in values and {"start", "end"} <= values.keys():
        first, last = _count(values["start"], where), _count(values["end"], where)
    else:
        raise EpisodeError(f"{where} needs either a frame, or a start and an end")
    if last < first:
        raise EpisodeError(f"{where} ends at frame {last}, before its start {first}")
    if len(values["episode"]) > MAX_NAME:
        raise EpisodeError(f"{where} has an episode of {len(values['episode'])} characters")
    return FrameLabel(values["episode"], first, last, success, where)


def _count(text: str, where: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise EpisodeError(f"{where} has the frame {text[:50]!r}: frames are whole numbers from 0")
    return int(text)
