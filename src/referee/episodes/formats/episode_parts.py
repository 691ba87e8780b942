"""Episodes out of the process that reads files, which hands over plain values and arrays (see `referee.reading`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from referee.episodes.episode import Episode, Meta
from referee.reading.safe_load import load_all

Parts = tuple[dict[str, Any], dict[str, Any]]
_FIELDS = [each.name for each in fields(Episode) if each.name != "meta"]


def parts_of(episode: Episode) -> Parts:
    """What an episode is made of."""
    return {name: getattr(episode, name) for name in _FIELDS}, vars(episode.meta)


def load_episodes(way: str, paths: Iterable[Path]) -> Iterator[Episode]:
    """The episodes in some files, in order. way: the name of a function that gives their parts."""
    return map(_made_of, load_all(way, paths))  # which keeps none of them while the next is read


def _made_of(parts: Parts) -> Episode:
    values, meta = parts
    return Episode(**values, meta=Meta(**meta))
