"""Placements on a command line as RLinf writes them: names and slots with commas, which Hydra takes for a sweep."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from referee.errors import ConfigError

if TYPE_CHECKING:  # importing Hydra takes longer than everything else here
    from hydra.core.override_parser.types import Override

PLACES = "cluster.component_placement"
LINE = re.compile(rf"\+{{0,2}}({re.escape(PLACES)}(?:\.[\w,.]+)?|cluster\.node_groups\.\d+\.node_ranks)=(.+)", re.S)
SLOTS = re.compile(r"\d+(-\d+)?")
SYNTAX = f"write {PLACES}.env=0,1 or '{PLACES}={{actor,env: 0-0, reward: 0,1}}'"


def read_placement(line: str) -> Override | None:
    """The override in a line that places workers and has commas; None for all other lines, which Hydra reads.

    Raises ConfigError where it cannot be read.
    """
    match = LINE.fullmatch(line.strip())
    if match is None or "," not in line:
        return None
    from hydra.core.override_parser.types import Override, OverrideType, ValueType

    key, text = match[1], _unquoted(match[2])
    mapping = key == PLACES or text.startswith("{")
    try:
        value = _mapping(text) if mapping else _scalar(text)
    except ValueError as error:
        raise ConfigError(f"cannot read override {line}: {error}; {SYNTAX}") from error
    return Override(OverrideType.CHANGE, key, ValueType.ELEMENT, value, input_line=line)


def _mapping(text: str) -> dict[str, Any]:
    """`actor,env: 0-0, reward: 0,1`, with or without braces: a part without a colon belongs to a neighbour."""
    inner = text.strip()
    if inner.startswith("{"):
        if not inner.endswith("}"):
            raise ValueError("a brace is not closed")
        inner = inner[1:-1]
    entries: dict[str, Any] = {}
    names: list[str] = []  # of the next entry, whose colon has not come yet
    last = ""
    for part in _parts(inner):
        name, colon, value = _at_colon(part)
        if colon:
            last = ",".join([*names, _unquoted(name)])
            entries[last], names = value.strip(), []
        elif last and not names and SLOTS.fullmatch(part):
            entries[last] += f",{part}"
        else:
            names.append(_unquoted(part))
    if names:
        raise ValueError(f"{','.join(names)} has no slots")
    return {name: _mapping(value) if value.startswith("{") else _scalar(value) for name, value in entries.items()}


def _parts(text: str) -> list[str]:
    """What stands between commas, but for those within braces or quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        depth += (not quote) * ((letter == "{") - (letter == "}"))
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _at_colon(part: str) -> tuple[str, str, str]:
    quoted = re.match(r"""('[^']*'|"[^"]*")\s*(:)(.*)""", part, re.S)
    return (quoted[1], quoted[2], quoted[3]) if quoted else part.partition(":")


def _scalar(text: str) -> Any:
    plain = _unquoted(text)
    if not plain:
        raise ValueError("a value is missing")
    if plain == text.strip() and plain == "null":
        return None
    return int(plain) if plain == text.strip() and plain.isdigit() else plain


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1].strip() if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
