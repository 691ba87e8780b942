"""What loading a preset gives back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from referee.config.guides import Implied
from referee.config.schema import Config
from referee.config.translator import Translated


@dataclass(frozen=True)
class Loaded:
    """A checked configuration.

    config: the typed tree.
    preset: the preset's name, or the stem of the user's file.
    sources: for each dotted key, where its value came from.
    notices: what a person should know whenever it is used, one line each: keys without effect, recommendations.
    translated: which keys of which source were written as in RLinf's guides; see `referee config explain`.
    implied: values that follow from that spelling, each with its source.
    dead: dotted keys that do nothing in this setting.
    told: those of them that somebody set, which notices tell.
    """

    config: Config
    preset: str
    sources: dict[str, str]
    notices: list[str]
    translated: tuple[Translated, ...] = ()
    implied: tuple[tuple[Implied, str], ...] = ()
    dead: frozenset[str] = frozenset()
    told: frozenset[str] = frozenset()

    def tree(self) -> dict[str, Any]:
        """The configuration as plain values: dicts, lists and scalars."""
        tree: dict[str, Any] = _plain(asdict(self.config))
        return tree


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and value and isinstance(value[0], dict):  # a list of sections, as keys are written
        value = {str(index): entry for index, entry in enumerate(value)}
    if isinstance(value, dict):
        return {name: _plain(child) for name, child in value.items()}
    return list(value) if isinstance(value, tuple) else value
