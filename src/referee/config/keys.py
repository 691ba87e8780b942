"""Reading the schema: what it says of each key, all known keys, and the one nearest to a wrong one."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from difflib import SequenceMatcher
from functools import cache
from typing import Any

from referee.config.declare import Key
from referee.config.leaves import Path, dotted
from referee.config.schema import Config


@dataclass(frozen=True)
class Spec:
    """One key as the schema declares it: a section (with its `classes`), a scalar, or a list or mapping of either."""

    key: Key
    default: Any
    optional: bool
    many: bool
    scalar: type
    classes: tuple[type, ...]
    others: tuple[type, ...] = ()  # types that a scalar may have, too
    named: bool = False  # a mapping of sections under any names

    @property
    def entries(self) -> bool:
        """Whether it holds any number of sections, by name or by index."""
        return bool(self.classes) and (self.many or self.named)

    @property
    def tag(self) -> str | None:
        """Name of the key that chooses among the classes of this section."""
        names = [name for cls in self.classes for name, spec in specs(cls).items() if spec.key.tag]
        return names[0] if names else None

    @property
    def tagged(self) -> dict[str, type]:
        """The classes of this section by the value of their tag."""
        return {specs(cls)[self.tag].default: cls for cls in self.classes} if self.tag else {}


@cache
def specs(cls: type) -> dict[str, Spec]:
    """The keys of a section by name, in the order of the schema."""
    hints = typing.get_type_hints(cls)
    return {f.name: _spec(hints[f.name], f.metadata["key"], f.default) for f in fields(cls)}


def _spec(hint: Any, key: Key, default: Any) -> Spec:
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    kinds = tuple(part for part in parts if part is not types.NoneType)
    many, named = (typing.get_origin(kinds[0]) is kind for kind in (tuple, Mapping))
    if many or named:
        kinds = (typing.get_args(kinds[0])[1 if named else 0],)
    classes, others = (kinds, ()) if is_dataclass(kinds[0]) else ((), kinds[1:])
    return Spec(key, default, types.NoneType in parts, many, kinds[0], classes, others, named)


def is_required(spec: Spec) -> bool:
    """Whether a key has no default; a section is never required, its keys are."""
    return spec.default is MISSING and not spec.classes


def walk(cls: type, path: Path = ()) -> Iterator[tuple[Path, Spec]]:
    """All keys below a section, over all classes that a tag may choose."""
    for name, spec in specs(cls).items():
        yield (*path, name), spec
        for child in spec.classes:
            yield from walk(child, (*path, name, "*") if spec.entries else (*path, name))


@cache
def known_keys(root: type = Config) -> tuple[str, ...]:
    """All dotted keys of the schema, sections included, each once."""
    return tuple(dict.fromkeys(dotted(path) for path, _ in walk(root)))


def nearest_key(wrong: str, known: Iterable[str]) -> tuple[str, bool]:
    """The known key most like a wrong one, wherever in the tree, and whether it is likely what was meant.

    The last part counts as much as the whole, so a right name in the wrong section is found, too.
    """

    def likeness(candidate: str) -> float:
        whole = SequenceMatcher(None, wrong, candidate).ratio()
        last = SequenceMatcher(None, wrong.rpartition(".")[2], candidate.rpartition(".")[2]).ratio()
        return whole + last

    best = max(known, key=likeness)
    return best, likeness(best) >= 1.1
