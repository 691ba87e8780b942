"""A configuration as a flat table of leaves, each with its origin, so values and sources stay together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Path = tuple[str, ...]


@dataclass(frozen=True)
class Origin:
    """Where a value came from; `older` is the older key it was translated from."""

    kind: str  # default | group | preset | file | command line
    name: str = ""
    older: str | None = None

    @property
    def explicit(self) -> bool:
        """Whether a person wrote this value for this run, rather than inheriting it."""
        return self.kind in ("preset", "file", "command line")

    def __str__(self) -> str:
        text = {"file": self.name, "group": f"group {self.name}", "preset": f"preset {self.name}"}.get(
            self.kind, self.kind
        )
        text = " ".join(text.split())  # a file name may hold anything; a source is one line
        return f"translated from {self.older} ({text})" if self.older else text


DEFAULT = Origin("default")
COMMAND_LINE = Origin("command line")


@dataclass(frozen=True)
class Leaf:
    """One value (scalar, list, null or empty section) and its origin."""

    value: Any
    origin: Origin


Leaves = dict[Path, Leaf]


def dotted(path: Iterable[str]) -> str:
    """The path as people write it."""
    return ".".join(path)


def flatten(node: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """All leaves of a nested tree; lists, nulls and empty sections are leaves.

    A list of sections is a section with the names 0, 1, …; an empty list goes ahead and clears an older one away.
    """
    if isinstance(node, dict) and node:
        for name, child in node.items():
            yield from flatten(child, (*path, str(name)))
    elif isinstance(node, list) and node and all(isinstance(child, dict) for child in node):
        yield path, []
        for index, child in enumerate(node):
            yield from flatten(child, (*path, str(index)))
    else:
        yield path, node


def nest(leaves: Leaves) -> dict[str, Any]:
    """The nested tree of the leaves' values."""
    root: dict[str, Any] = {}
    for path, leaf in leaves.items():
        node = root
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = leaf.value
    return root


def under(leaves: Leaves, prefix: Path) -> list[Path]:
    """Paths strictly below `prefix`."""
    return [path for path in leaves if len(path) > len(prefix) and path[: len(prefix)] == prefix]


def names_below(leaves: Leaves, prefix: Path) -> list[str]:
    """The names right below `prefix`, each once."""
    return list(dict.fromkeys(path[len(prefix)] for path in under(leaves, prefix)))


def is_interpolation(value: Any) -> bool:
    """Whether the value holds an interpolation, as ${runner.seed}."""
    return isinstance(value, str) and "${" in value


def put(leaves: Leaves, path: Path, leaf: Leaf) -> None:
    """Set one leaf; it replaces what was there, and nothing stays above or below it."""
    below = under(leaves, path)
    if leaf.value == {} and below:
        return  # an empty section adds nothing to a full one
    for other in below:
        del leaves[other]
    for length in range(len(path)):
        above = leaves.get(path[:length])
        if above is not None and not is_interpolation(above.value):  # "train: ${env.eval}" may be refined
            del leaves[path[:length]]
    leaves.pop(path, None)
    leaves[path] = leaf


def remove(leaves: Leaves, path: Path) -> bool:
    """Delete a leaf or a whole section; whether there was one."""
    gone = [*under(leaves, path), *([path] if path in leaves else [])]
    for other in gone:
        del leaves[other]
    return bool(gone)
