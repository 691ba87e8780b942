"""Interpolations: sections taken from elsewhere (train: ${env.eval}) and single values (${oc.env:HOME})."""

from __future__ import annotations

import re
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException

from referee.config.keys import known_keys, nearest_key, walk
from referee.config.leaves import Leaf, Leaves, Path, dotted, is_interpolation, nest, under
from referee.errors import ConfigError

WHOLE_KEY = re.compile(r"\$\{([\w.]+)\}")
CIRCLE = "refers back to itself: name a section that is written out"
MAX_HOPS = 8  # a section may refer to one that refers on; more than this is a circle


def expand_sections(leaves: Leaves, root: type) -> Leaves:
    """Copy the section that a reference names to where it stands; keys set there on top stay."""
    sections = {path for path, spec in walk(root) if spec.classes}
    full = dict(leaves)
    for _ in range(MAX_HOPS):
        refs = [path for path, leaf in full.items() if path in sections and is_interpolation(leaf.value)]
        if not refs:
            return full
        for path in refs:
            _expand(full, path)
    raise ConfigError(f"{_where(refs[0], full[refs[0]])} {CIRCLE}")


def _expand(leaves: Leaves, path: Path) -> None:
    leaf = leaves[path]
    match = WHOLE_KEY.fullmatch(leaf.value)
    target = tuple(match[1].split(".")) if match else ()
    if not match or not (target in leaves or under(leaves, target)):
        raise ConfigError(f"{_where(path, leaf)} names no section of this config: write it as ${{env.eval}}")
    if target == path:
        raise ConfigError(f"{_where(path, leaf)} {CIRCLE}")
    del leaves[path]
    if target in leaves:
        leaves[path] = Leaf(leaves[target].value, leaf.origin)
    for other in under(leaves, target):
        leaves.setdefault((*path, *other[len(target) :]), Leaf(leaves[other].value, leaf.origin))


def resolve(leaves: Leaves, root: type, *, only: set[str] | None = None) -> Leaves:
    """Replace interpolations by their values; `only` restricts it to keys with these last names."""
    wanted = [p for p, leaf in leaves.items() if _interpolated(leaf.value) and (only is None or p[-1] in only)]
    if not wanted:
        return leaves
    for path, leaf in leaves.items():
        _check_grammar(path, leaf)
    tree = OmegaConf.create(nest(leaves))
    return leaves | {path: Leaf(_resolved(tree, path, leaves[path], root), leaves[path].origin) for path in wanted}


def _interpolated(value: Any) -> bool:
    return any(map(is_interpolation, value)) if isinstance(value, list) else is_interpolation(value)


def _check_grammar(path: Path, leaf: Leaf) -> None:
    try:
        OmegaConf.create({"value": leaf.value})
    except OmegaConfBaseException as error:
        raise ConfigError(f"{_where(path, leaf)} cannot be read: {_first_line(error)}; \\${{ is a plain ${{") from error


def _resolved(tree: DictConfig, path: Path, leaf: Leaf, root: type) -> Any:
    _check_parts(tree, path, leaf)
    try:
        value = OmegaConf.select(tree, dotted(path), throw_on_missing=True, throw_on_resolution_failure=True)
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except (OmegaConfBaseException, RecursionError) as error:
        raise ConfigError(f"{_where(path, leaf)} cannot be resolved: {_reason(error, root)}") from error


def _check_parts(tree: DictConfig, path: Path, leaf: Leaf) -> None:
    """Refuse a text with a reference to nothing in its midst, which would become a folder called None."""
    for found in re.finditer(r"\$\{([\w.]+)\}", leaf.value if isinstance(leaf.value, str) else ""):
        if found[0] != leaf.value and OmegaConf.select(tree, found[1], default="") is None:
            raise ConfigError(f"{_where(path, leaf)} cannot be resolved: {found[1]} is null here; set it")


def _reason(error: BaseException, root: type) -> str:
    if isinstance(error, RecursionError):
        return "it refers to itself"
    text = _first_line(error)
    variable = re.search(r"Environment variable '(.*?)' not found", text)
    if variable:
        name = variable[1]
        return f"environment variable {name} is not set; export {name}=… or give a default, ${{oc.env:{name},…}}"
    missing = re.search(r"Interpolation key '(.*?)' not found", text)
    if missing and isinstance(error, InterpolationKeyError):
        near, _ = nearest_key(missing[1], known_keys(root))
        return f"there is no key {missing[1]}; did you mean ${{{near}}}?"
    return text


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _where(path: Path, leaf: Leaf) -> str:
    return f"{dotted(path)} ({leaf.origin}): {' '.join(str(leaf.value).split())}"
