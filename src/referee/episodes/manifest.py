"""The manifest of a store: a line about each episode, which can always be rebuilt from the episode's file."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from referee.checksums import ChecksumError, sealed_line, unsealed
from referee.episodes.episode import Episode

Line = str | bytes
_FIELDS = ("id", "steps", "success_once", "success_at_end", "bytes", "task", "source", "cameras", "created")
_TYPES = {
    (str, int, once, at_end, int, str, str, list, str)
    for once, at_end in itertools.product((bool, type(None)), repeat=2)
}


@dataclass(frozen=True)
class Row:
    """What the manifest says about an episode: enough to list, choose and split without opening it."""

    id: str
    steps: int
    success_once: bool | None
    success_at_end: bool | None
    bytes: int
    task: str
    source: str
    cameras: tuple[str, ...]
    created: str

    def to_json(self) -> str:
        """One line, with its checksum."""
        return sealed_line({**vars(self), "cameras": list(self.cameras)})

    @classmethod
    def from_json(cls, line: Line) -> Row | None:
        """The inverse; None where the line carries no checksum, so that nobody can tell whether it is true.

        ChecksumError if it has changed, ValueError if it is no row at all.
        """
        values, sealed = unsealed(line)
        return cls._of_values(values) if sealed else None

    @classmethod
    def _of_values(cls, values: dict[str, Any]) -> Row:
        if tuple(values) != _FIELDS or tuple(map(type, values.values())) not in _TYPES:
            raise ValueError("it is not about an episode")
        values["cameras"] = tuple(map(str, values["cameras"]))
        return cls(**values)

    @classmethod
    def of(cls, episode: Episode, size: int) -> Row:
        """The row of an episode whose file has `size` bytes."""
        meta = episode.meta
        return cls(meta.id, len(episode), episode.success_once, episode.success_at_end, size, meta.task, meta.source,
                   meta.cameras, meta.created)  # fmt: skip


@dataclass
class Manifest:
    """What could be read of a manifest."""

    rows: dict[str, Row]
    sound: bool = True
    """Whether every line is a row, and every episode is in one line."""
    changed: int = 0
    """Lines that are not as they were written."""


def read(path: Path) -> Manifest:
    """The rows of a manifest, without those that cannot be trusted."""
    manifest = Manifest({})
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return manifest
    *lines, torn = data.split(b"\n")
    manifest.sound = not torn  # the last line of a killed process
    for line in lines:
        try:
            row = Row.from_json(line)
        except (ChecksumError, ValueError):
            manifest.sound = False
            manifest.changed += 1
            continue
        if row is None or row.id in manifest.rows:  # of an older version; or one repaired while another appended
            manifest.sound = False
        if row is not None:
            manifest.rows[row.id] = row
    return manifest
