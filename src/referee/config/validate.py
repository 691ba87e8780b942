"""From untyped leaves to the typed Config: what is unknown, missing or wrong is one clear line each."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from referee.config.declare import bounds, nearest_word
from referee.config.keys import Spec, is_required, known_keys, nearest_key, specs, walk
from referee.config.leaves import DEFAULT, Leaf, Leaves, Path, dotted, names_below, under
from referee.errors import ConfigError

T = TypeVar("T")
NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
PLURALS = {int: "integers", float: "numbers", bool: "true and false", str: "strings"}
NUMBER = r"[-+]?[\d.]+(e[-+]?\d+)?"
QUOTED = {
    int: NUMBER,
    float: NUMBER,
    bool: "true|false",
    str: "(?!)",
}  # a string that lost its type to quotes


def complete(leaves: Leaves, root: type) -> Leaves:
    """Refuse keys that the schema does not know, then add its defaults; the order is the schema's."""
    short = {path: spec.key.short for path, spec in walk(root) if spec.key.short}
    leaves = {_in_full(path, leaf, short): leaf for path, leaf in leaves.items()}
    for path, leaf in leaves.items():
        _check_known(path, leaf, leaves, root)
    return _with_defaults(leaves, root, ())


def build(cls: type[T], leaves: Leaves) -> T:
    """The typed tree from complete, resolved leaves."""
    return cls(**_values(cls, leaves, ()))


def _values(cls: type, leaves: Leaves, path: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, spec in specs(cls).items():
        here = (*path, name)
        if here in leaves:
            leaf = leaves[here]
            empty = () if spec.many and leaf.value is not None else None
            values[name] = empty if spec.classes else _checked(here, leaf, spec)
        elif spec.entries:
            cls = spec.classes[0]
            entries = {entry: cls(**_values(cls, leaves, (*here, entry))) for entry in _entries(leaves, here, spec)}
            values[name] = tuple(entries.values()) if spec.many else entries
        else:
            chosen = class_of(spec, leaves, here)
            values[name] = chosen(**_values(chosen, leaves, here))
    return values


def class_of(spec: Spec, leaves: Leaves, path: Path) -> type:
    """The dataclass of a section, chosen by its tag or by another key where it has one."""
    if spec.key.by is not None:
        name, classes = spec.key.by
        chooser = leaves.get(tuple(name.split(".")))
        return classes.get(str(chooser.value), spec.classes[0]) if chooser else spec.classes[0]
    if spec.tag is None:
        return spec.classes[0]
    leaf = leaves.get((*path, spec.tag))
    if leaf is None:
        return spec.classes[0]
    if not isinstance(leaf.value, str) or leaf.value not in spec.tagged:
        raise _not_among((*path, spec.tag), leaf, tuple(spec.tagged))
    return spec.tagged[leaf.value]


def chosen_keys(root: type, leaves: Leaves, path: Path = ()) -> Iterator[tuple[Path, Spec]]:
    """All keys below a section, of the classes that are chosen here."""
    for name, spec in specs(root).items():
        here = (*path, name)
        yield here, spec
        if spec.entries:
            for entry in names_below(leaves, here):
                yield (*here, entry), spec
                yield from chosen_keys(spec.classes[0], leaves, (*here, entry))
        elif spec.classes:
            yield from chosen_keys(class_of(spec, leaves, here), leaves, here)


def _in_full(path: Path, leaf: Leaf, short: Mapping[Path, str]) -> Path:
    """The path of a leaf; that of an entry which is given as a single value goes on to the key that it means."""
    single = path[:-1] in short and leaf.value is not None and leaf.value != {}
    return (*path, short[path[:-1]]) if single else path


def _check_known(path: Path, leaf: Leaf, leaves: Leaves, root: type) -> None:
    cls, depth = root, 0
    while depth < len(path):
        spec = specs(cls).get(path[depth])
        depth += 1
        here = path[:depth]
        if spec is None or (here != path and not spec.classes):
            raise _unknown(path, here, leaf, root, spec)
        if not spec.classes:
            return
        depth += spec.entries  # the entry's name may be any
        if depth >= len(path):
            _check_section(path, leaf, spec)
            return
        cls = class_of(spec, leaves, here)


def _check_section(path: Path, leaf: Leaf, spec: Spec) -> None:
    if leaf.value == {} or (leaf.value is None and spec.optional) or (spec.many and leaf.value in ([], ())):
        return
    if leaf.value is None:
        raise ConfigError(f"{dotted(path)} ({leaf.origin}) is empty: remove the line or give it keys")
    names = ", ".join(list(specs(spec.classes[0]))[:4])
    group = f", or choose a group, as {path[0]}@{dotted(path)}=NAME" if spec.tag else ""
    several = "a list of sections, each" if spec.many else "a mapping of names to sections, each"
    kind = several if spec.entries else "a section"
    raise _wrong(path, leaf, f"is {kind} with keys ({names}, …)", f": set its keys{group}")


def _entries(leaves: Leaves, path: Path, spec: Spec) -> list[str]:
    """The names of the entries of a key that holds several; those of a list are 0, 1, …"""
    names = names_below(leaves, path)
    if not spec.many:
        return names
    for name in names:
        if name not in map(str, range(len(names))):
            raise ConfigError(f"{dotted((*path, name))} leaves a gap: {dotted(path)} is a list, number it from 0")
    return sorted(names, key=int)


def _unknown(path: Path, here: Path, leaf: Leaf, root: type, spec: Spec | None) -> ConfigError:
    wrong = dotted(path)
    what = f"unknown key {wrong} ({leaf.origin})"
    if spec is not None:
        kind = "a list; give all of it" if spec.many else "a single value"
        return ConfigError(f"{what}: {dotted(here)} is {kind}, as {dotted(here)}={shown(spec.default)}")
    if wrong not in known_keys(root):
        return unknown_key(wrong, str(leaf.origin), root)
    if any("." in part for part in path):
        return ConfigError(f"{what}: write it nested in YAML, one line per part, not with dots")
    kind = dotted(here[:-1])
    return ConfigError(f"{what}: it is a key of another kind of {kind}; choose that kind or remove the key")


def unknown_key(wrong: str, source: str, root: type) -> ConfigError:
    """The error for a key that is nowhere in the schema, with the known key nearest to it."""
    near, sure = nearest_key(wrong, known_keys(root))
    nearest = f"the nearest is {near}; `referee config show PRESET` lists all keys"
    hint = f"did you mean {near}?" if sure else nearest
    return ConfigError(f"unknown key {' '.join(wrong.split())} ({source}): {hint}")


def _with_defaults(leaves: Leaves, cls: type, path: Path) -> Leaves:
    full: Leaves = {}
    for name, spec in specs(cls).items():
        here = (*path, name)
        leaf = leaves.get(here)
        if spec.entries and names_below(leaves, here):
            for entry in _entries(leaves, here, spec):
                full |= _with_defaults(leaves, spec.classes[0], (*here, entry))
        elif spec.entries:
            full[here] = Leaf(spec.default, DEFAULT) if leaf is None else leaf
        elif spec.classes and (not spec.optional or under(leaves, here) or (leaf is not None and leaf.value == {})):
            full |= _with_defaults(leaves, class_of(spec, leaves, here), here)
        elif leaf is None and is_required(spec):
            raise ConfigError(f"{dotted(here)} is missing: set it {_to(spec)}")
        else:
            full[here] = leaf or Leaf(spec.default, DEFAULT)
    return full


def _to(spec: Spec) -> str:
    if spec.key.choices:
        return f"to one of {_listed(spec.key.choices)}"
    return f"to {NAMES[spec.scalar]}: {spec.key.help}"


def check_leaf(path: Path, leaf: Leaf, spec: Spec) -> None:
    """Refuse a value that a key cannot have."""
    if not spec.classes:
        _checked(path, leaf, spec)


def _checked(path: Path, leaf: Leaf, spec: Spec) -> Any:
    if leaf.value is None and spec.optional:
        return None
    if isinstance(leaf.value, str) and leaf.value == "???":
        raise ConfigError(f"{dotted(path)} ({leaf.origin}) is marked ???, to be given: set it {_to(spec)}")
    return _checked_list(path, leaf, spec) if spec.many else _checked_scalar(path, leaf, spec)


def _checked_list(path: Path, leaf: Leaf, spec: Spec) -> tuple[Any, ...]:
    if spec.key.single and type(leaf.value) is spec.scalar:
        leaf = Leaf([leaf.value], leaf.origin)
    if not isinstance(leaf.value, list | tuple):
        raise _wrong(path, leaf, f"must be a list, as {shown(spec.default)}")
    if spec.key.low is not None and len(leaf.value) < spec.key.low:
        raise _wrong(path, leaf, f"must have at least {spec.key.low} of {_listed(spec.key.choices or ())}")
    entries = tuple(_typed(path, Leaf(entry, leaf.origin), spec) for entry in leaf.value)
    for index, entry in enumerate(entries):
        if spec.key.choices is not None and entry not in spec.key.choices:
            raise _not_among(path, Leaf(entry, leaf.origin), spec.key.choices)
        if spec.key.choices is not None and entry in entries[:index]:
            raise _wrong(path, leaf, f"names {entry} twice; name each once")
    return entries


def _checked_scalar(path: Path, leaf: Leaf, spec: Spec) -> Any:
    value = _typed(path, leaf, spec)
    key = spec.key
    named = key.attribute and isinstance(value, str) and ":" in value
    if key.choices is not None and value not in key.choices and not named:
        raise _not_among(path, leaf, key.choices)
    if (key.low is not None and value < key.low) or (key.high is not None and value > key.high):
        raise _wrong(path, leaf, f"must be {bounds(key)}")
    return value


def _typed(path: Path, leaf: Leaf, spec: Spec) -> Any:
    """The value if it has exactly the type asked for; an integer is also a number; nothing else converts."""
    kind = spec.scalar
    value: Any = leaf.value
    if kind is float and type(value) is int:
        value = float(value) if abs(value) < 1e300 else math.inf
    if type(value) is not kind and type(value) not in spec.others:
        entries = f"hold {PLURALS[kind]}" if spec.many else f"be {NAMES[kind]}{' or null' if spec.optional else ''}"
        raise _wrong(path, leaf, f"must {entries}", _type_hint(path[-1], value, kind))
    if isinstance(value, float) and not math.isfinite(value):
        raise _wrong(path, leaf, "must be a finite number")
    return value


def _type_hint(name: str, value: Any, kind: type) -> str:
    if isinstance(value, str) and re.fullmatch(QUOTED[kind], value, re.IGNORECASE):
        return ": remove the quotes (from the environment: ${oc.decode:${oc.env:NAME}})"
    if isinstance(value, int | float) and kind is str:
        return f": quote it (on the command line: {name}='\"{shown(value)}\"')"
    return ""


def _not_among(path: Path, leaf: Leaf, choices: tuple[Any, ...]) -> ConfigError:
    near = nearest_word(leaf.value, choices) if isinstance(leaf.value, str) else None
    return _wrong(path, leaf, f"must be one of {_listed(choices)}", f": did you mean {near}?" if near else "")


def _wrong(path: Path, leaf: Leaf, what: str, hint: str = "") -> ConfigError:
    return ConfigError(f"{dotted(path)} ({leaf.origin}) {what}, got {shown(leaf.value)}{hint}")


def _listed(choices: tuple[Any, ...]) -> str:
    return ", ".join(map(str, choices))


def shown(value: Any) -> str:
    """A value as one would write it in YAML, shortened to fit into a line."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    text = text.replace('"', "") if isinstance(value, list | tuple) else text
    return text if len(text) <= 60 else text[:57] + "…"
