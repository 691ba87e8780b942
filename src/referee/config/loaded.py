"""What loading a preset gives back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from referee.config.schema import Config


@dataclass(frozen=True)
class Loaded:
    """A checked configuration.

    config: the typed tree.
    preset: the preset's name, or the stem of the user's file.
    sources: for each dotted key, where its value came from.
    notices: what a person should know, one line each: older keys translated, keys without effect.
    """

    config: Config
    preset: str
    sources: dict[str, str]
    notices: list[str]

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
