"""Writes docs/keys.md: every key that the user documents show, and what becomes of it. Run it after a new key.

The documents' settings are tests/documented/guides/blocks/*.yaml, one file for each block that they show. Tests check
that keys.md is what this script writes, that each block loads, and that each key has its effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from referee.config.keys import known_keys
from referee.config.leaves import Leaf, Origin, dotted, flatten
from referee.config.translate import ROWS, Translator
from referee.errors import ConfigError

HERE = Path(__file__).parent
BLOCKS = HERE.parent / "tests/documented/guides/blocks"
INTRODUCTION = """# Keys of the documents

Every key that the five user documents show, in the order in which they show it, and what becomes of it here. An older
spelling is translated, with one notice when the configuration is loaded; a key that needs no counterpart is accepted,
with a notice that says why. `referee config show PRESET` lists all keys there are.

Written by `python docs/make_keys.py`.
"""


@dataclass(frozen=True)
class Block:
    """One block of settings of a document, over the preset that it is meant for."""

    name: str
    preset: str
    text: str
    overrides: tuple[str, ...] = ()
    """What the front door of the documents adds; only for a block that is a whole file."""

    @property
    def document(self) -> str:
        """000 to 004."""
        return self.name[:3]

    def file(self) -> str:
        """The block as a file that a user would write."""
        return self.text if self.overrides else f"defaults:\n  - {self.preset}\n  - _self_\n{self.text}"


def blocks() -> Iterator[Block]:
    """All blocks of all documents."""
    for path in sorted(BLOCKS.glob("*.yaml")):
        first, _, text = path.read_text().partition("\n")
        preset, _, recipe = first.partition(": ")[2].partition(", started with ")
        yield Block(path.stem, preset, text, (recipe,) if recipe else ())


def leaves(block: Block) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The keys of a block and their values, without the list of files that it begins from."""
    return ((path, value) for path, value in flatten(yaml.safe_load(block.text)) if path[0] != "defaults")


def fate(key: str, value: object, block: Block) -> str:
    """What becomes of a key, as one cell of the table."""
    learns = block.preset in ("train_reward_model", "reward_training", "maniskill_train_resnet_reward")
    worlds = dict.fromkeys(("train", "eval"), "maniskill") if "maniskill" in block.preset else {}
    translate = Translator("document", recipe="train_reward" if learns else "train_policy", worlds=worlds)
    path = tuple(key.split("."))
    try:
        found = translate(path, Leaf(value, Origin("file", "document")))
    except ConfigError as error:
        return f"refused: {str(error).partition('refused: ')[2]}"
    if found is None:
        said = (
            translate.notices[0].partition("has no effect: ")[2].removesuffix("; remove it")
            if translate.notices
            else ""
        )
        return f"no effect: {said}" if said else "what happens anyway"
    place, leaf = found
    assert _known(dotted(place)), f"{key} of {block.name} is not known"
    changed = f" = `{_shown(leaf.value)}`" if leaf.value != value else ""
    return "the same" if dotted(place) == key and not changed else f"`{dotted(place)}`{changed}"


def _known(key: str) -> bool:
    """Whether the schema has the key; entries of lists and mappings have names of their own."""
    short = (key, f"{key}.placement", f"{key}.value")  # a value may stand for the section whose one key it is
    return any(_fits(wanted.split("."), each.split(".")) for each in short for wanted in known_keys())


def _fits(wanted: list[str], parts: list[str]) -> bool:
    return len(wanted) == len(parts) and all(a in ("*", b) for a, b in zip(wanted, parts, strict=True))


def _shown(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def table() -> str:
    """The whole page."""
    rows: dict[tuple[str, str], list[str]] = {}
    for block in blocks():
        for path, value in leaves(block):
            if value == []:  # the list itself; its entries follow
                continue
            rows.setdefault((dotted(path), fate(dotted(path), value, block)), []).append(block.document)
    for row in (row for row in ROWS if row.refused):
        rows[row.old, f"refused: {row.because}"] = [row.document]
    lines = [INTRODUCTION, "| key | documents | here |", "|---|---|---|"]
    lines += [f"| `{key}` | {', '.join(dict.fromkeys(seen))} | {what} |" for (key, what), seen in rows.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (HERE / "keys.md").write_text(table())
