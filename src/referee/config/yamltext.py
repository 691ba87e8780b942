"""The little that we do with YAML ourselves, beside OmegaConf: one-line values and readable errors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

YAMLError: type[Exception] = yaml.YAMLError
MAX_BYTES, MAX_VALUES, MAX_DEPTH, MAX_ALIASES = 256 << 10, 20_000, 50, 1000
"""Of one file. The largest preset has a hundredth of the bytes and of the values."""
PLAIN = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null|nan|inf)$)[A-Za-z_][\w./+-]*", re.IGNORECASE | re.ASCII)


class TooLarge(ValueError):
    """A file is larger, or would become larger, than a configuration can be."""


def check(data: bytes) -> None:
    """Refuse YAML that is too large, nested too deeply, or would grow beyond measure through its aliases."""
    if len(data) > MAX_BYTES:
        raise TooLarge(f"has {len(data)} bytes, but a configuration may have {MAX_BYTES >> 10} KiB")
    try:
        _count(yaml.parse(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except YAMLError:
        _count(yaml.parse(data, Loader=yaml.SafeLoader))  # which says it in the words that OmegaConf uses


def _count(events: Iterable[Any]) -> None:
    """Count values and depth as if every alias were written out."""
    sizes: dict[str, tuple[int, int] | None] = {}
    """Values and height of what an anchor names; None while that has not ended."""
    open_nodes: list[tuple[str | None, int, int]] = [(None, 0, 0)]
    aliases = 0
    for event in events:
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.CollectionStartEvent):
            if anchor is not None:
                sizes[anchor] = None
            open_nodes.append((anchor, 1, 1))
            if len(open_nodes) > MAX_DEPTH:
                raise TooLarge(f"is nested more than {MAX_DEPTH} deep")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, values, height = open_nodes.pop()
        elif isinstance(event, yaml.AliasEvent):
            aliases += 1
            target = sizes.get(anchor or "", (1, 1))  # an unknown one is an error that YAML itself tells
            if target is None:
                raise TooLarge(f"has an alias, *{anchor}, that stands inside of what it names")
            (values, height), anchor = target, None
        elif isinstance(event, yaml.ScalarEvent):
            values, height = 1, 1
        else:
            continue
        if anchor is not None:
            sizes[anchor] = values, height
        parent, total, highest = open_nodes[-1]
        open_nodes[-1] = parent, total + values, max(highest, height + 1)
        if aliases > MAX_ALIASES:
            raise TooLarge(f"holds more than {MAX_ALIASES} aliases (*name)")
        if total + values > MAX_VALUES:
            raise TooLarge(f"holds more than {MAX_VALUES} values, its aliases (*name) written out")
        if len(open_nodes) + height > MAX_DEPTH + 1:
            raise TooLarge(f"is nested more than {MAX_DEPTH} deep")


def scalar(value: Any) -> str:
    """A value in one line of YAML that any YAML reader, and OmegaConf, reads back as the same value."""
    if isinstance(value, list):
        return f"[{', '.join(map(scalar, value))}]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        digits, exponent, power = repr(value).partition("e")
        return digits + (".0" if "." not in digits else "") + exponent + power  # YAML 1.1 knows 1.0e-05, not 1e-05
    return _string(value) if isinstance(value, str) else str(value)


def _string(text: str) -> str:
    if PLAIN.fullmatch(text):
        return text
    # What looks like an interpolation by now is meant literally, so it is escaped as OmegaConf wants it.
    literal = re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + r"\${", text)
    text = yaml.safe_dump(literal, default_style='"', width=float("inf"), allow_unicode=True)
    return text.rstrip("\n")


def problem(error: Exception) -> tuple[str | None, str]:
    """What a YAML error says, in one line: (file:line where it stopped, if known; the reason)."""
    mark = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or " ".join(str(error).split())
    return (f"{mark.name}:{mark.line + 1}" if mark else None), reason
