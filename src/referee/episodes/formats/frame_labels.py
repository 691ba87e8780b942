"""Labels files: which frames of imported episodes are a success.

CSV with a header, or JSON lines with the same names. A row labels one frame, a span [start, stop), or a whole episode:

    episode,frame,success     episode,start,stop,success     {"episode": "run_7", "frame": 41, "success": true}
    run_7,41,1                run_7,30,42,1                  {"episode": "run_8", "start": 0, "stop": 10, "success": 0}

Frames count from 0. `stop` is the first frame after the span, as in Python and in the label log; left empty, the span
runs to the end of the episode. `end`, the last frame of the span, is read as well. All kinds of rows may stand in one
file (the columns of the other kinds are left empty). `success` is 1, 0, true or false. A later row overrides an
earlier one. Frames without a row keep the label that was recorded; in an episode without any, they are no success. An
episode without rows stays as it was.

An episode is called by its name, as `referee episodes ls` lists it: its path inside the source without the ending
(`positive/000003`), or as much of the end of that path as fits no other episode (`000003`). `*` stands for anything.
"""

from __future__ import annotations

import csv
import fnmatch
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from referee.episodes.episode import WHOLE_SUCCESS, Episode, EpisodeError
from referee.episodes.formats.frames import naming

_VALUES = {"1": True, "true": True, "0": False, "false": False}
MAX_NAME = 1000
MAX_LABEL_BYTES = 256 << 20


@dataclass(frozen=True)
class FrameLabel:
    """One row: the frames from `start` until before `stop` (None: the end of the episode) are (not) a success."""

    episode: str
    start: int
    stop: int | None
    success: bool
    line: int

    @property
    def row(self) -> str:
        """Where it stands, for messages."""
        return f"line {self.line}"

    def names(self, name: str) -> bool:
        """Whether it is about the episode of that name."""
        if any(letter in self.episode for letter in "*?["):
            return fnmatch.fnmatchcase(name, self.episode)
        return name == self.episode or name.endswith(f"/{self.episode}")


class FrameLabels:
    """The rows of a labels file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._by_end: dict[str, list[FrameLabel]] = {}
        self._patterns: list[FrameLabel] = []
        self._used: dict[str, str] = {}
        with naming(path):
            for label in _read(path):
                exact = not any(letter in label.episode for letter in "*?[")
                (self._by_end.setdefault(_end(label.episode), []) if exact else self._patterns).append(label)

    def check_names(self, names: Iterable[str]) -> None:
        """Refuse rows about episodes that are not there, and those that could be about several."""
        known = list(names)
        for name in known:
            self.rows(name)
        self.check_used(known)

    def check_used(self, names: list[str]) -> None:
        """Refuse rows that no episode has been asked for."""
        rows = [row for some in self._by_end.values() for row in some] + self._patterns
        unused = [row for row in rows if row.episode not in self._used]
        if unused:
            first = min(unused, key=lambda row: row.line)
            some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
            raise EpisodeError(f"{self.path}: {first.row} is about {first.episode!r}, but the episodes are {some}")

    def rows(self, name: str) -> list[FrameLabel]:
        """What the file says about an episode, in its order."""
        found = [row for row in self._by_end.get(_end(name), ()) if row.names(name)]
        for row in found:
            other = self._used.setdefault(row.episode, name)
            if other != name:
                raise EpisodeError(
                    f"{self.path}: {row.row} is about {row.episode!r}, which is both {other} and {name}: "
                    "write more of its path"
                )
        patterns = [row for row in self._patterns if row.names(name)]
        self._used.update((row.episode, name) for row in patterns)
        return sorted([*found, *patterns], key=lambda row: row.line)

    def span(self, row: FrameLabel, name: str, states: int) -> tuple[int, int]:
        """The frames [start, stop) that a row is about, which an episode of so many states must have."""
        stop = states if row.stop is None else row.stop
        if row.start >= states or stop > states:
            frame = row.start if row.start >= states else stop - 1
            raise EpisodeError(
                f"{self.path}: {row.row} is about frame {frame} of {name!r}, whose frames are 0 to {states - 1}"
            )
        return row.start, stop

    def apply(self, name: str, episode: Episode) -> Episode:
        """The episode with what the file says about it."""
        rows, states = self.rows(name), episode.states_count
        if not rows:
            return episode
        success = np.zeros(states, bool) if episode.success is None else episode.success.copy()
        for row in rows:
            start, stop = self.span(row, name, states)
            success[start:stop] = row.success
        return with_success(episode, success, f"labels {self.path.name}")


def labelled(episodes: Iterable[tuple[str, Episode]], labels: FrameLabels) -> Iterator[tuple[str, Episode]]:
    """Episodes with their labels, by their names; a row about none of them ends it with an error."""
    names = []
    for name, episode in episodes:
        names.append(name)
        yield name, labels.apply(name, episode)
    labels.check_used(names)


def with_success(episode: Episode, success: np.ndarray, origin: str) -> Episode:
    """The episode with other labels, and where they come from."""
    extra: dict[str, Any] = {key: value for key, value in episode.meta.extra.items() if key != WHOLE_SUCCESS}
    missing = [each for each in extra.pop("missing", ()) if each != "success"]
    extra |= {**({"missing": missing} if missing else {}), "success_from": origin}
    return replace(episode, success=success, meta=replace(episode.meta, extra=extra))


def _end(name: str) -> str:
    return name.rpartition("/")[2]


def _read(path: Path) -> list[FrameLabel]:
    if path.suffix not in (".csv", ".jsonl"):
        raise EpisodeError("a labels file ends in .csv or .jsonl")
    if path.stat().st_size > MAX_LABEL_BYTES:
        raise EpisodeError("is too large for a labels file")
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix == ".csv":
        reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
        if "episode" not in (reader.fieldnames or ()) or "success" not in (reader.fieldnames or ()):
            raise EpisodeError("its first line must be episode,frame,success or episode,start,stop,success")
        return [_label(row, reader.line_num) for row in reader]
    labels = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise EpisodeError(f"line {number} is not a JSON object")
            labels.append(_label(row, number))
    return labels


def _label(row: Mapping[str, Any], line: int) -> FrameLabel:
    where = f"line {line}"
    values = {key: str(value).strip() for key, value in row.items() if value is not None and str(value).strip()}
    success = _VALUES.get(values.get("success", "").lower())
    if success is None or "episode" not in values:
        raise EpisodeError(f"{where} needs an episode, and a success that is 1, 0, true or false")
    given = {key for key in ("frame", "start", "stop", "end") if key in values}
    count = {key: _count(values[key], where) for key in given}
    stop: int | None = None
    if given == {"frame"}:
        start, stop = count["frame"], count["frame"] + 1
    elif given in ({"start"}, {"start", "stop"}, {"start", "end"}, set()):
        start = count.get("start", 0)
        stop = count["end"] + 1 if "end" in given else count.get("stop")
    else:
        raise EpisodeError(f"{where} needs a frame, or a start and a stop, or neither for the whole episode")
    if stop is not None and stop <= start:
        said = f"ends at frame {count['end']}" if "end" in given else f"stops at frame {stop}"
        raise EpisodeError(f"{where} {said}, {'before' if 'end' in given else 'not after'} its start {start}")
    if len(values["episode"]) > MAX_NAME:
        raise EpisodeError(f"{where} has an episode of {len(values['episode'])} characters")
    return FrameLabel(values["episode"], start, stop, success, line)


def _count(text: str, where: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise EpisodeError(f"{where} has the frame {text[:50]!r}: frames are whole numbers from 0")
    return int(text)
