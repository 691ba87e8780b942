"""Slots and nodes as people write them: `0`, `0-3`, `0,2`, `all`."""

from __future__ import annotations

import re

from referee.errors import ConfigError

FORM = re.compile(r"(\d{1,6})(?:\s*-\s*(\d{1,6}))?")
MOST = 4096
"""More indices than this are a slip of the finger."""


def read_indices(text: str | int, key: str) -> tuple[int, ...] | None:
    """The indices in the order given, or None for `all`; `key` is named where they cannot be read."""
    words = [word.strip() for word in str(text).split(",")]
    if words == ["all"]:
        return None
    found: list[int] = []
    for word in words:
        match = FORM.fullmatch(word)
        if match is None:
            raise ConfigError(f"{key}: cannot read {str(text)!r}: write 0, 0-3, 0,2 or all")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ConfigError(f"{key}: {word} ends before it begins: write {last}-{first}")
        if last - first >= MOST:
            raise ConfigError(f"{key}: {word} are more than {MOST}: name fewer")
        found += range(first, last + 1)
    for index in found:
        if found.count(index) > 1:
            raise ConfigError(f"{key}: {text} names {index} twice: name each once")
    return tuple(found)
