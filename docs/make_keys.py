"""Writes docs/keys.md: every key that RLinf's guides show, and what becomes of it. Run it after a new key.

The guides' settings are tests/documented/guides/blocks/*.yaml, one file for each block that they show. Tests check
that keys.md is what this script writes, that each block loads, and that each key has its effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from referee.config.guides import IMPLIED
from referee.config.keys import known_keys
from referee.config.leaves import Leaf, Origin, dotted, flatten
from referee.config.translate import GUIDES, ROWS
from referee.config.translator import Translator
from referee.errors import ConfigError

HERE = Path(__file__).parent
BLOCKS = HERE.parent / "tests/documented/guides/blocks"
INTRODUCTION = """# Keys of RLinf's guides

Every key that RLinf's five reward-model guides show, in the order in which they show it, and what becomes of it here.
An older spelling is translated. `referee config explain FILE` prints the same for a file of yours, and
`referee config show PRESET` lists the keys that act with a preset, and with `--all` all that it has.

{guides}

Written by `python docs/make_keys.py`.
"""
IMPLIED_HEAD = """
## Values that follow from the spelling

The older guides leave some values unsaid. A configuration in their spelling (`reward.reward_model.*` in 000 and 003,
`reward.resnet.*`, `reward.reward_model_type` or `reward.mode` in 002) that uses a reward model gets these values,
unless a file or the command line names the key.

| key | value | guides | only with | effect |
|---|---|---|---|---|"""


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
        if not translate.entries:
            return "what happens anyway"
        row = translate.entries[-1].row
        return f"{'not needed' if row.harmless is None else 'no effect'}: {row.because}"
    place, leaf = found
    assert _known(dotted(place)), f"{key} of {block.name} is not known"
    changed = f" = `{_shown(leaf.value)}`" if leaf.value != value else ""
    here = "the same" if dotted(place) == key and not changed else f"`{dotted(place)}`{changed}"
    return here + "".join(f"; a warning: {line.partition('): ')[2]}" for line in translate.warnings)


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
    for row in ROWS:
        for value, because in row.refusals.items():
            rows[f"{row.old}: {_shown(value)}", f"refused: {because}"] = [row.document]
    guides = "\n".join(f"- {number}: {title}" for number, title in GUIDES.items())
    lines = [INTRODUCTION.format(guides=guides), "| key | guides | here |", "|---|---|---|"]
    lines += [f"| `{key}` | {', '.join(dict.fromkeys(seen))} | {what} |" for (key, what), seen in rows.items()]
    lines.append(IMPLIED_HEAD)
    for each in IMPLIED:
        only = f"`{each.only_if.replace(', ', '`, `')}`" if each.only_if else ""
        effect = f"{each.effect}; recommended: {each.advice}" if each.advice else each.effect
        lines.append(f"| `{each.key}` | `{_shown(each.value)}` | {', '.join(each.guides)} | {only} | {effect} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (HERE / "keys.md").write_text(table())
