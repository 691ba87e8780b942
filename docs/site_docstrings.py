"""An extension of griffe: lines `name: what it is` of a docstring become a list, as they are meant to be read."""

from __future__ import annotations

import re
from typing import Any

import griffe

ARGUMENT = re.compile(r"^(?P<names>\w+(?:(?:, | … )\w+)*): (?=\S)")


class Arguments(griffe.Extension):  # type: ignore[misc]
    """Rewrites the docstring of every object that is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe."""
        if obj.docstring:
            obj.docstring.value = as_list(obj.docstring.value)


def as_list(text: str) -> str:
    """The same text, with a list where arguments are explained one per line."""
    lines: list[str] = []
    for number, line in enumerate(text.splitlines()):
        found = ARGUMENT.match(line) if number else None
        if found:
            if lines[-1].strip() and not lines[-1].startswith(("- ", "    ")):
                lines.append("")
            names = re.sub(r"\w+", lambda name: f"`{name[0]}`", found["names"])
            line = f"- {names}: {line[found.end() :]}"
        lines.append(line)
    return "\n".join(lines)
