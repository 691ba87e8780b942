"""How a configuration key is declared: its default, limits and meaning beside its type."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from typing import Any, TypeVar

from referee.errors import RefereeError

T = TypeVar("T")
REQUIRED = MISSING  # as a default: the key has to be given


@dataclass(frozen=True)
class Key:
    """What the schema says about one key beside its type and default; see `key`."""

    help: str
    choices: tuple[Any, ...] | None = None
    low: float | None = None
    high: float | None = None
    only_if: str | None = None
    tag: bool = False
    single: bool = False
    by: tuple[str, Mapping[str, type]] | None = None
    short: str | None = None
    attribute: bool = False


def key(
    default: Any,
    help: str,
    *,
    choices: tuple[Any, ...] | None = None,
    low: float | None = None,
    high: float | None = None,
    only_if: str | None = None,
    tag: bool = False,
    single: bool = False,
    by: tuple[str, Mapping[str, type]] | None = None,
    short: str | None = None,
    attribute: bool = False,
) -> Any:
    """Declare one key.

    default: the value, a dataclass for a section, or REQUIRED.
    choices: the values allowed; for a list, the entries allowed, each at most once.
    low, high: bounds, both included; for a list, of its length.
    only_if: when the key acts: "policy=expert", "policy!=random", "film" (is on), several joined by " or "; a name
        without a dot is a sibling, one with dots is absolute. A key set without effect is reported.
    tag: the value of this key chooses the dataclass of its section (see EnvConfig).
    single: a list that may also be given as its only entry, without brackets.
    by: for a section, another key and the dataclasses that its values choose; the first one is taken otherwise.
    short: for a mapping of sections, the key of an entry that is given as a single value.
    attribute: beside the choices, `module:attribute` is accepted.

    A key is a scalar, a list of scalars, a section, a list of sections, or a mapping of sections under any names.
    """
    meta = {"key": Key(help, choices, low, high, only_if, tag, single, by, short, attribute)}
    if isinstance(default, type):
        return field(default_factory=default, metadata=meta)
    return field(default=default, metadata=meta)


def bounds(key: Key) -> str:
    """The limits of a key in words."""
    if key.high is None:
        return f"at least {key.low}"
    return f"at most {key.high}" if key.low is None else f"between {key.low} and {key.high}"


class Checked:
    """A section that programs build by hand, too: it refuses values outside the limits that its keys declare."""

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            value, key = getattr(self, each.name), each.metadata["key"]
            named = key.attribute and isinstance(value, str) and ":" in value
            if key.choices is not None and isinstance(value, str) and value not in key.choices and not named:
                near = nearest_word(value, key.choices)
                hint = f": did you mean {near}?" if near else ""
                raise RefereeError(f"{each.name} is {value!r}, but it must be one of {', '.join(key.choices)}{hint}")
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            outside = (key.low is not None and value < key.low) or (key.high is not None and value > key.high)
            if outside or not math.isfinite(value):
                limits = "" if key.low is None and key.high is None else f" {bounds(key)}"
                raise RefereeError(f"{each.name} is {value}, but it must be a number{limits}")


def gather(cls: type[T], *sections: object, **more: Any) -> T:
    """A section whose keys stand in several others, out of these; more: what none of them says."""
    names = [each.name for each in fields(cls)]  # type: ignore[arg-type]
    return cls(**{name: getattr(each, name) for each in sections for name in names if hasattr(each, name)} | more)


def nearest_word(wrong: object, words: Iterable[object]) -> str | None:
    """The word most like a wrong one, whatever its case."""
    by_lower = {str(word).lower(): str(word) for word in words}
    close = get_close_matches(str(wrong).lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[close[0]] if close else None
