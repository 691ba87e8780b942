"""Applies the rows of `translate.py` to one file, or to one command line, and remembers what it did.

Each source is translated before they are laid over each other, so an older key in a user's file beats a newer one in a
group, as it should.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from referee.config.leaves import Leaf, Leaves, Path, dotted
from referee.config.translate import PANDA, ROWS, Row, Values
from referee.errors import ConfigError

REFERENCE = re.compile(r"\$\{([\w.]+)\}")


@dataclass(frozen=True)
class Translation:
    """One key as somebody wrote it, and what became of it; `key` is None where it has no effect."""

    written: str
    written_value: Any
    key: str | None
    value: Any
    row: Row
    """The first one that applied."""


@dataclass(frozen=True)
class Translated:
    """What was translated in one source."""

    source: str
    """A file as one would name it here, or `command line`."""
    entries: tuple[Translation, ...]
    identity: str = ""
    """What the source is called wherever one is; empty: as `source`."""

    @property
    def line(self) -> str:
        """For people who start a run."""
        count = len(self.entries)
        what = f"{self.source}: {count} RLinf key{'s' * (count > 1)} translated"
        return f"{what} (referee config explain {'…' if self.source == COMMAND else self.source})"

    @property
    def digest(self) -> str:
        """The same for the same keys and values of the same source."""
        content = [(entry.written, repr(entry.written_value)) for entry in self.entries]
        return hashlib.sha256(repr((self.identity or self.source, content)).encode()).hexdigest()[:32]


COMMAND = "command line"


@dataclass
class Translator:
    """Translates the leaves of one source."""

    source: str
    rows: Sequence[Row] = ROWS
    recipe: str = ""  # rows for another one do not count
    worlds: Mapping[str, str] = field(default_factory=dict)  # env_type of env.train and env.eval
    identity: str = ""
    entries: list[Translation] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    implied: dict[Path, Leaf] = field(default_factory=dict)
    spelling: dict[Path, str] = field(default_factory=dict)  # canonical path: how it was written here
    _missed: list[tuple[Translation, str]] = field(default_factory=list)  # keys without effect, and their origins

    def __call__(self, path: Path, leaf: Leaf) -> tuple[Path, Leaf] | None:
        """The canonical path and leaf; None when the key is accepted without effect."""
        old_path, old_value = path, leaf.value
        first: Row | None = None
        if isinstance(leaf.value, str):  # what it refers to may have moved, too
            leaf = replace(leaf, value=REFERENCE.sub(lambda match: f"${{{self._moved(match[1])}}}", leaf.value))
        for row in self.rows:
            stars = row.matches(path) if self._counts(row, path) else None
            if stars is None:
                continue
            if leaf.value in row.drops:
                return None
            self._check_value(row, path, leaf)
            if row.new is None:
                self._without_effect(row, path, leaf)
                return None
            for key, value in row.implies if leaf.value is not False else ():  # what is off implies nothing
                origin = replace(leaf.origin, older=dotted(path))
                self.implied.setdefault(tuple(key.split(".")), Leaf(value, origin))
            first, path = first or row, _filled(row.new, stars)
            value = row.convert(leaf.value) if row.convert else _new_value(leaf.value, row.values or {})
            leaf = replace(leaf, value=value)
        self._check_single(path, dotted(old_path))
        if path != old_path:
            leaf = replace(leaf, origin=replace(leaf.origin, older=dotted(old_path)))
        if first is not None and (path != old_path or leaf.value != old_value):
            self.entries.append(Translation(dotted(old_path), old_value, dotted(path), leaf.value, first))
        return path, leaf

    def target(self, path: Path) -> Path:
        """The canonical path alone, for a key that is to be deleted."""
        for row in self.rows:
            stars = row.matches(path) if self._counts(row, path) else None
            if stars is not None and row.new is not None:
                path = _filled(row.new, stars)
        return path

    def translated(self) -> Translated | None:
        """All that was translated; None where nothing was. The last word about a key counts."""
        entries = {entry.written: entry for entry in self.entries}
        return Translated(self.source, tuple(entries.values()), self.identity) if entries else None

    def notices(self, leaves: Leaves) -> Iterator[str]:
        """What a person should know each time. leaves: of all sources."""
        for entry, origin in self._missed:
            row, value = entry.row, entry.written_value
            same = leaves.get(tuple(row.same_as.split("."))) if row.same_as else None
            if row.harmless is None or value in row.harmless or (same is not None and same.value in (value, [value])):
                continue
            yield f"{entry.written} ({origin}) has no effect: {row.because}; remove it"
        yield from self.warnings

    def _counts(self, row: Row, path: Path) -> bool:
        world = self.worlds.get(path[1], PANDA) if path[0] == "env" and len(path) > 1 else None
        return row.recipe in (None, self.recipe) and row.world in (None, world)

    def _moved(self, key: str) -> str:
        return dotted(self.target(tuple(key.split("."))))

    def _check_value(self, row: Row, path: Path, leaf: Leaf) -> None:
        """Refuse, or warn about, a value that the row names."""
        what, plain = f"{dotted(path)}={_text(leaf.value)} ({leaf.origin})", isinstance(leaf.value, str | bool)
        if plain and leaf.value in row.refusals:
            raise ConfigError(f"{what}: {row.refusals[leaf.value]}")
        if plain and leaf.value in row.warnings:
            self.warnings.append(f"{what}: {row.warnings[leaf.value]}")

    def _without_effect(self, row: Row, path: Path, leaf: Leaf) -> None:
        what = f"{dotted(path)} ({leaf.origin})"
        if row.refused:
            raise ConfigError(f"{what} of RLinf's guides is refused: {row.because}")
        if row.accepts is not None and leaf.value not in row.accepts:
            raise ConfigError(f"{what} has no effect here and accepts only {row.accepts[0]}: {row.because}; remove it")
        entry = Translation(dotted(path), leaf.value, None, None, row)
        self.entries.append(entry)
        self._missed.append((entry, str(leaf.origin)))

    def _check_single(self, path: Path, written: str) -> None:
        """A key may be given twice on a command line, but not under two names."""
        first = self.spelling.setdefault(path, written)
        if first != written:
            raise ConfigError(
                f"{first} and {written} are both set ({self.source}) and mean the same: keep only {dotted(path)}"
            )


def _filled(pattern: str, stars: tuple[str, ...]) -> Path:
    parts = iter(stars)
    return tuple(next(parts) if part == "*" else part for part in pattern.split("."))


def _new_value(value: Any, values: Values) -> Any:
    if isinstance(value, list):
        return [_new_value(entry, values) for entry in value]
    return values.get(value, value) if isinstance(value, str | int | float | bool) else value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)
