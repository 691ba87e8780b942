"""A configuration as people read it: the tree with its sources, the file to save, the table of presets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from referee.config import files
from referee.config.loaded import Loaded
from referee.config.yamltext import scalar

COMMENT_COLUMN = 44  # a longer line pushes only its own comment to the right


def show(loaded: Loaded, *, everything: bool = False) -> str:
    """The resolved tree as YAML, each value with its source as a comment, and the notices below.

    everything: also keys that do nothing in this setting.
    """
    hidden = frozenset[str]() if everything else loaded.dead - loaded.told
    rows = list(_rows(_without(loaded.tree(), hidden)))
    count = sum(bool(key) for _, key in rows)
    left = f"; {len(hidden)} that do nothing here are left out (--all shows them)" if hidden else ""
    lines = [f"# {loaded.preset}: {count} keys, each with where its value came from{left}"]
    width = min(COMMENT_COLUMN, max(len(text) for text, key in rows if key))
    for text, key in rows:
        idle = ", no effect" if key in loaded.dead else ""
        lines.append(f"{text:<{width}}  # {loaded.sources[key]}{idle}" if key else text)
    notices = [*(each.line for each in loaded.translated), *loaded.notices]
    if notices:
        lines += ["", *(f"# note: {notice}" for notice in notices)]
    return "\n".join(lines) + "\n"


def _without(tree: dict[str, Any], hidden: frozenset[str], prefix: str = "") -> dict[str, Any]:
    """The tree without some keys, and without the sections of which nothing is left."""
    kept: dict[str, Any] = {}
    for name, value in tree.items():
        key = prefix + name
        if isinstance(value, dict):
            inside = _without(value, hidden, f"{key}.")
            kept |= {name: inside} if inside or not value else {}
        elif key not in hidden:
            kept[name] = value
    return kept


def to_yaml(loaded: Loaded) -> str:
    """The resolved tree as a file of its own: loading it gives the same configuration again."""
    head = f"# The complete configuration of a run of {loaded.preset}; again with `referee run THIS_FILE`."
    return "\n".join([head, *(text for text, _ in _rows(loaded.tree()))]) + "\n"


def list_presets() -> str:
    """A table of all presets: name, recipe and what it is for."""
    rows = [("PRESET", "RECIPE", "WHAT IT DOES")]
    rows += [(name, _recipe(name), _description(name)) for name in files.presets()]
    wide = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(f"{name:<{wide[0]}}  {recipe:<{wide[1]}}  {what}" for name, recipe, what in rows) + "\n"


def _description(preset: str) -> str:
    lines = (files.PRESETS / f"{preset}.yaml").read_text(encoding="utf-8").splitlines()
    return next((line.lstrip("# ") for line in lines if line.startswith("#")), "")


def _recipe(preset: str) -> str:
    from referee.config.load import load

    runner = files.read(files.PRESETS / f"{preset}.yaml").get("runner") or {}
    return str(runner.get("recipe") or load(preset).config.runner.recipe)


def _rows(tree: dict[str, Any], prefix: str = "", indent: str = "") -> Iterator[tuple[str, str]]:
    """Lines of YAML with the dotted key that each of them sets; "" for the head of a section."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield f"{indent}{name}:", ""
            yield from _rows(value, f"{prefix}{name}.", indent + "  ")
        else:
            yield f"{indent}{name}: {scalar(value)}", prefix + name
