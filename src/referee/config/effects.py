"""Keys that were set but have no effect in the chosen setting: each is reported, none is passed over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from referee.config.keys import Spec, known_keys, nearest_key, walk
from referee.config.leaves import Leaf, Leaves, Path, dotted
from referee.config.runner import RUNNERS, RunnerConfig
from referee.config.schema import RECIPES, Recipe
from referee.config.validate import check_leaf, chosen_keys, shown, unknown_key
from referee.errors import ConfigError


def check_needs(leaves: Leaves, recipe: str) -> None:
    """Refuse a config that lacks a section its recipe cannot do without."""
    for need in RECIPES[recipe].needs:
        leaf = leaves.get(tuple(need.split(".")))
        if leaf is not None and leaf.value is None:
            group = need.split(".")[0]
            raise ConfigError(
                f"{need} is missing ({leaf.origin}): recipe {recipe} needs it; add a group, as {group}@{need}=panda"
            )


def of_other_recipes(leaves: Leaves, root: type) -> Leaves:
    """The keys under `runner` that only other recipes have, as in a file of a run that was saved before."""
    recipe = leaves.get(("runner", "recipe"))
    mine = RUNNERS.get(str(recipe.value), RunnerConfig) if recipe is not None else RunnerConfig
    others = {path[0] for cls in RUNNERS.values() for path, _ in walk(cls)} - {path[0] for path, _ in walk(mine)}
    return {path: leaf for path, leaf in leaves.items() if path[0] == "runner" and path[1:2] and path[1] in others}


@dataclass(frozen=True)
class Effects:
    """What of a configuration does nothing in the chosen setting."""

    dead: frozenset[str]
    """Keys that nothing reads, whoever set them."""
    told: frozenset[str]
    """Those of them that somebody set on purpose."""
    lines: list[str]
    """One line about each of these."""


def effects(leaves: Leaves, recipe: str, root: type, elsewhere: Leaves) -> Effects:
    """What has an effect and what has none. elsewhere: keys of other recipes."""
    known = dict(chosen_keys(root, leaves))
    unread = {path for path in leaves if not _is_read(path, RECIPES[recipe])}
    unmet = {path: found for path in leaves if path not in unread and (found := _unmet(path, leaves, known))}
    dead = [path for path in leaves if path in unread or path in unmet]
    told = {path: leaves[path] for path in dead if _meant(leaves[path], known[path])}
    lines = _unread_by_others(elsewhere, recipe, root)
    lines += _unread_lines({path: leaf for path, leaf in told.items() if path in unread}, recipe, root)
    lines += [
        f"{dotted(path)} ({leaf.origin}) has no effect: {_acts_with(unmet[path], leaves)}"
        for path, leaf in told.items()
        if path in unmet
    ]
    return Effects(frozenset(map(dotted, dead)), frozenset(map(dotted, told)), lines)


def _unread_by_others(elsewhere: Leaves, recipe: str, root: type) -> list[str]:
    known = dict(walk(root))
    lines = []
    for path, leaf in elsewhere.items():
        if path not in known:
            raise unknown_key(dotted(path), str(leaf.origin), root)
        check_leaf(path, leaf, known[path])
        if _meant(leaf, known[path]):
            owners = [name for name, cls in RUNNERS.items() if path[1:] in dict(walk(cls))]
            acts = f"it acts only with runner.recipe={_either(owners)}, which is {recipe} here"
            lines.append(f"{dotted(path)} ({leaf.origin}) has no effect: {acts}")
    return lines


def _meant(leaf: Leaf, spec: Spec) -> bool:
    """Whether the key was set on purpose; a file that spells out a default, as a saved one does, is not.

    Nor is a null that takes away what a file had set: nobody misses its effect.
    """
    if spec.key.tag or not leaf.origin.explicit:
        return False
    default = list(spec.default) if isinstance(spec.default, tuple) else spec.default
    return leaf.value != default or (leaf.origin.kind == "command line" and default is not None)


def _is_read(path: Path, recipe: Recipe) -> bool:
    return any(path[: len(parts)] == parts for parts in (tuple(read.split(".")) for read in recipe.reads))


def _unread_lines(unread: Leaves, recipe: str, root: type) -> list[str]:
    by_source: dict[tuple[str, Path], list[Path]] = {}
    for path, leaf in unread.items():
        by_source.setdefault((str(leaf.origin), path[:2]), []).append(path)
    return [_unread_line(source, paths, recipe, root) for (source, _), paths in by_source.items()]


def _unread_line(source: str, paths: list[Path], recipe: str, root: type) -> str:
    """One line per section and source, however many keys of it were set."""
    readers = [name for name, other in RECIPES.items() if _is_read(paths[0], other)]
    readable = [key for key in known_keys(root) if _is_read(tuple(key.split(".")), RECIPES[recipe])]
    near, sure = nearest_key(dotted(paths[0]), readable)
    section = dotted(paths[0][:2])
    acts = f"{section} acts with recipe {' or '.join(readers)}" if readers else f"no recipe reads {section} yet"
    meant = f"; did you mean {near}?" if sure and len(paths) == 1 else ""
    keys, have = ", ".join(map(dotted, paths)), "has" if len(paths) == 1 else "have"
    reads = ", ".join(RECIPES[recipe].reads)
    return f"{keys} ({source}) {have} no effect: recipe {recipe} reads only {reads}; {acts}{meant}"


def _unmet(path: Path, leaves: Leaves, known: Mapping[Path, Spec]) -> list[tuple[Path, str]] | None:
    """The conditions of a key of which none holds: its own, its section's, or those of the keys that they are about."""
    for length in range(1, len(path) + 1):  # a condition on a section holds for all its keys
        spec = known.get(path[:length])
        condition = None if spec is None else spec.key.only_if
        if condition is None:
            continue
        options = [_option(option, path[: length - 1]) for option in condition.split(" or ")]
        holding = [key for key, wanted in options if _holds(key, wanted, leaves)]
        if not holding:
            return options
        deeper = [_unmet((*key[:-1], key[-1].removesuffix("!")), leaves, known) for key in holding]
        if all(deeper):
            return deeper[0]
    return None


def _option(text: str, section: Path) -> tuple[Path, str]:
    key, _, wanted = text.partition("=")
    return (tuple(key.split(".")) if "." in key else (*section, key)), wanted


def _holds(key: Path, wanted: str, leaves: Leaves) -> bool:
    if key[-1].endswith("!"):
        return not _holds((*key[:-1], key[-1].removesuffix("!")), wanted, leaves)
    value: Any = leaves[key].value if key in leaves else None
    return shown(value).strip('"') == wanted if wanted else bool(value)


def _acts_with(options: list[tuple[Path, str]], leaves: Leaves) -> str:
    sections = {key[:-1] for key, _ in options}
    if len(options) > 1 and len(sections) == 1 and not any(wanted for _, wanted in options):
        section = dotted(options[0][0][:-1])
        return f"it acts only with one of {section}.{{{', '.join(key[-1] for key, _ in options)}}} on"
    values: dict[Path, list[str]] = {}
    for key, wanted in options:
        values.setdefault(key, []).append(wanted or ("true" if _now(key, leaves) in ("true", "false") else "on"))
    said = " or ".join(f"{dotted(key)}={_either(wanted)}" for key, wanted in values.items())
    return f"it acts only with {said}" + (f", which is {_now(options[0][0], leaves)} here" if len(values) == 1 else "")


def _now(key: Path, leaves: Leaves) -> str:
    key = (*key[:-1], key[-1].removesuffix("!"))
    return shown(leaves[key].value).strip('"') if key in leaves else "null"


def _either(values: list[str]) -> str:
    """`a, b or c`"""
    return " or ".join(filter(None, [", ".join(values[:-1]), values[-1]]))
