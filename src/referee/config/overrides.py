"""Overrides in Hydra's syntax: values, which we set ourselves, and groups, which Hydra composes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

from referee.config.keys import known_keys, walk
from referee.config.leaves import COMMAND_LINE, Leaf, Leaves, Path, dotted, flatten, put, remove
from referee.config.placements import read_placement
from referee.config.translator import Translator
from referee.config.validate import shown, unknown_key
from referee.config.yamltext import MAX_DEPTH
from referee.errors import ConfigError

if TYPE_CHECKING:  # importing Hydra takes longer than everything else here
    from hydra.core.override_parser.types import Override

MAX_LINE = 20_000
SYNTAX = "write key=value; quote a value with special characters twice, as key='\"a, b\"'"


@dataclass(frozen=True)
class Overrides:
    """The command line, in the order given."""

    values: list[Override]
    groups: list[Override]
    hydra: list[str]  # settings of Hydra itself


def parse(lines: Sequence[str], places: tuple[FilePath, ...]) -> Overrides:
    """Read override lines; `places` is the search path, where groups are directories."""
    found = Overrides([], [], [])
    for line in lines:
        override = _parse_line(line)
        if re.match(r"hydra([./@]|$)", override.key_or_group):
            found.hydra.append(line)
        elif _is_group(override, places):
            found.groups.append(override)
        else:
            found.values.append(override)
    return found


def _parse_line(line: str) -> Override:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if len(line) > MAX_LINE:
        raise ConfigError(f"override {shown(line[:80])}… has {len(line)} characters: put it into a file")
    placed = read_placement(line)
    if placed is not None:
        return placed
    try:
        override = OverridesParser.create().parse_override(line)
    except (HydraException, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read override {shown(line)}: {SYNTAX}") from error
    if not override.key_or_group or _is_deep(override.value()):
        raise ConfigError(f"cannot read override {shown(line)}: {SYNTAX}")
    if override.is_sweep_override():
        raise ConfigError(f"override {shown(line)} is a sweep, and one run takes one value: for a list write key=[a,b]")
    return override


def _is_deep(value: object) -> bool:
    """Whether a value is nested deeper than a file may be."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        nested = [each for each in level if isinstance(each, list | dict)]
        level = [inner for each in nested for inner in (each.values() if isinstance(each, dict) else each)]
        depth += 1
    return depth > MAX_DEPTH


def _is_group(override: Override, places: tuple[FilePath, ...]) -> bool:
    name = override.key_or_group
    if override.package is not None or "/" in name:
        return True
    return "." not in name and isinstance(override.value(), str) and any((p / name).is_dir() for p in places)


def apply(values: Sequence[Override], leaves: Leaves, translate: Translator, root: type) -> None:
    """Set and delete values in order. Plain, + and ++ mean the same: the schema says which keys exist."""
    for override in values:
        path: Path = tuple(override.key_or_group.split("."))
        if override.is_delete():
            _delete(override, translate.target(path), leaves, root)
            continue
        for here, value in flatten(override.value(), path):
            translated = translate(here, Leaf(value, COMMAND_LINE))
            if translated is not None:
                lay(leaves, *translated, root)


def lay(leaves: Leaves, path: Path, leaf: Leaf, root: type) -> None:
    """Set one leaf; an empty mapping of names clears what was there, as `cluster.component_placement={}`."""
    if leaf.value == {} and dotted(path) in _mappings(root):
        remove(leaves, path)
    put(leaves, path, leaf)


@cache
def _mappings(root: type) -> frozenset[str]:
    return frozenset(dotted(path) for path, spec in walk(root) if spec.named)


def _delete(override: Override, path: Path, leaves: Leaves, root: type) -> None:
    """Back to the default; deleting what is not set changes nothing, as long as the schema knows the key."""
    leaf, wanted = leaves.get(path), override.value()
    if wanted is not None and (leaf is None or leaf.value != wanted):
        raise ConfigError(
            f"{override.input_line} (command line): {dotted(path)} has another value; write ~{dotted(path)}"
        )
    if not remove(leaves, path) and dotted(path) not in known_keys(root):
        raise unknown_key(dotted(path), "command line", root)
