"""The episodes that a dataset is built from: each with an id and its labels, and to be read more than once."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from referee.episodes import Episode, EpisodeStore
from referee.episodes.formats.detect import read_any
from referee.episodes.store import EPISODES
from referee.errors import RefereeError
from referee.labels.log import LabelLog, recorded


def open_source(path: Path) -> EpisodeStore | Reread:
    """An episode store, or files of any format that holds episodes; to be read as often as one likes."""
    if not path.exists():
        raise RefereeError(f"{path} does not exist")
    if (path / EPISODES).is_dir():
        return EpisodeStore(path, create=False)
    return Reread(lambda: read_any(path))


class Reread:
    """Episodes that are read anew at every pass."""

    def __init__(self, read: Callable[[], Iterator[Episode]]) -> None:
        self._read = read

    def __iter__(self) -> Iterator[Episode]:
        return self._read()


def resolve(episode: Episode, labels: LabelLog | None) -> np.ndarray:
    """int8[T+1]: 1 success, 0 failure, -1 unknown; without a log, what was recorded."""
    return recorded(episode) if labels is None else labels.resolve(episode)


@contextlib.contextmanager
def rereadable(source: Iterable[Episode], folder: Path) -> Iterator[Callable[[], Iterator[Episode]]]:
    """A function that reads the source from its start; what can be read only once is kept in `folder` meanwhile."""
    if not isinstance(source, Iterator):
        yield lambda: _named(source)
        return
    with tempfile.TemporaryDirectory(prefix=".episodes-", dir=folder) as spool:
        store, ids = EpisodeStore(spool), []
        for index, episode in enumerate(_named(source)):
            ids.append(episode.meta.id)
            store.append(replace(episode, meta=replace(episode.meta, id=f"{index:09d}")))
        yield lambda: (
            replace(episode, meta=replace(episode.meta, id=id)) for episode, id in zip(store, ids, strict=True)
        )


def _named(source: Iterable[Episode]) -> Iterator[Episode]:
    for index, episode in enumerate(source):
        yield episode if episode.meta.id else replace(episode, meta=replace(episode.meta, id=f"{index:06d}"))
