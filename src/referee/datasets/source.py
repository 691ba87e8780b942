"""The episodes that a dataset is built from: each with an id and its labels, and to be read more than once."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from referee.episodes import Episode, EpisodeStore
from referee.episodes.formats.detect import read_any
from referee.episodes.store import EPISODES, SHOWN
from referee.errors import RefereeError
from referee.labels.log import LabelLog, recorded


def open_source(path: Path, labels: Path | None = None) -> EpisodeStore | EpisodeFiles:
    """An episode store, or files of any format that holds episodes; to be read as often as one likes.

    labels: a file that labels the frames; see `read_any`.
    """
    if not path.exists():
        raise RefereeError(f"{path} does not exist")
    if (path / EPISODES).is_dir() and labels is None:
        return EpisodeStore(path, create=False)
    return EpisodeFiles(path, labels)


class EpisodeFiles:
    """Episodes in files of any format; they are read again at every pass, one at a time."""

    def __init__(self, path: Path, labels: Path | None = None) -> None:
        self.path, self.labels = path, labels

    def __iter__(self) -> Iterator[Episode]:
        return read_any(self.path, labels=self.labels)

    def __repr__(self) -> str:
        return f"EpisodeFiles({str(self.path)!r})"

    def _repr_html_(self) -> str:
        from referee import notebook

        shown = [episode._repr_html_() for episode in itertools.islice(self, SHOWN)]
        return notebook.panel(f"Episodes in {self.path}", {}, *shown)


def left_out(source: object) -> list[str]:
    """What to say of the files of a store that cannot be read; nothing of other sources, which end at such a file."""
    line = source.left_out() if isinstance(source, EpisodeStore) else ""
    return [line] if line else []


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
