"""The little that we do with YAML ourselves, beside OmegaConf: one-line values and readable errors."""

from __future__ import annotations

import re
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

YAMLError: type[Exception] = yaml.YAMLError
PLAIN = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null|nan|inf)$)[A-Za-z_][\w./+-]*", re.IGNORECASE | re.ASCII)


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
