"""A journal of an episode that is still going on: chunks on disk, so that a kill loses at most the last second."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from referee import files
from referee.episodes.builder import EpisodeBuilder
from referee.episodes.episode import Episode, EpisodeError, Meta
from referee.episodes.formats import native
from referee.episodes.store import JOURNALS, EpisodeStore, new_id

FORMAT = "referee-journal-1"
ALIVE_SECONDS = 30
"""A journal that nobody wrote to for so long is taken for abandoned."""


class Journal:
    """One episode, written down while it runs.

    Use it like an `EpisodeBuilder`; `finish` turns it into an episode of the store, `discard` forgets it. What a killed
    process leaves is brought back by `recover`. Another thread may call `flush` while the episode grows.
    """

    def __init__(self, store: EpisodeStore, meta: Meta, *, max_seconds: float = 1.0, max_states: int = 100) -> None:
        self.meta = meta if meta.id else replace(meta, id=new_id())
        self._store = store
        self._folder = store.root / JOURNALS / self.meta.id
        self._folder.mkdir(parents=True)
        self._builder = EpisodeBuilder(self.meta)
        self._max_seconds, self._max_states = max_seconds, max_states
        self._written: dict[str, int] = {}
        self._chunks = 0
        self._flushed = time.monotonic()
        self._growing, self._writing = threading.Lock(), threading.Lock()
        self._closed = False

    def __len__(self) -> int:
        return len(self._builder)

    def start(self, observation: Mapping[str, Any], **about: Any) -> None:
        """See `EpisodeBuilder.start`."""
        with self._growing:
            self._builder.start(observation, **about)
        self._flush_if_due()

    def step(self, action: Any, observation: Mapping[str, Any], **about: Any) -> None:
        """See `EpisodeBuilder.step`."""
        with self._growing:
            self._builder.step(action, observation, **about)
        self._flush_if_due()

    def flush(self) -> None:
        """Write what is new, and wait until it is on disk."""
        with self._writing:
            if self._closed:
                return
            with self._growing:  # not while a step is half there
                rows = {name: list(rows[self._written.get(name, 0) :]) for name, rows in self._builder.rows.items()}
            new = {name: np.stack(some) for name, some in rows.items() if some}
            if new:
                path = self._folder / f"{self._chunks:06d}{native.SUFFIX}"
                with files.replacing(path) as temporary, temporary.open("wb") as file:
                    native.write_arrays(file, new, {"format": FORMAT, "meta": json.dumps(self.meta.to_json())})
                self._written = {name: self._written.get(name, 0) + len(some) for name, some in rows.items()}
                self._chunks += 1
            self._flushed = time.monotonic()

    def end_here(self) -> None:
        """The last step ended the episode, although the environment would have gone on."""
        with self._growing:
            self._builder.rows["terminated"][-1] = np.array(True)

    def finish(self) -> str:
        """Keep the episode in the store, cut off if nothing ended it; returns its id."""
        rows = self._builder.rows
        if "truncated" in rows and not rows["terminated"][-1]:
            rows["truncated"][-1] = np.array(True)
        id = self._store.append(self._builder.build())
        self.discard()
        return id

    def discard(self) -> None:
        """Forget the episode."""
        with self._writing:
            self._closed = True
            shutil.rmtree(self._folder)

    def _flush_if_due(self) -> None:
        states = max((len(rows) - self._written.get(name, 0) for name, rows in self._builder.rows.items()), default=0)
        if states >= self._max_states or time.monotonic() - self._flushed >= self._max_seconds:
            self.flush()


def recover(store: EpisodeStore, *, older_than: float = ALIVE_SECONDS) -> list[str]:
    """Turn abandoned journals into episodes, cut off where the journal ends; returns their ids."""
    recovered = []
    for folder in sorted(path for path in (store.root / JOURNALS).glob("*") if path.is_dir()):
        chunks = sorted(path for path in folder.glob(f"*{native.SUFFIX}") if not path.name.startswith("."))
        newest = max((path.stat().st_mtime for path in [folder, *chunks]), default=0.0)
        if time.time() - newest < older_than:
            continue
        if folder.name not in store.rows:
            episode = _joined(chunks)
            if episode is not None:
                recovered.append(store.append(episode))
        shutil.rmtree(folder)
    return recovered


def _joined(chunks: list[Path]) -> Episode | None:
    """The episode in the chunks of a journal; None where there is not even one step."""
    rows: dict[str, list[np.ndarray]] = {}
    meta = Meta()
    for path in chunks:
        arrays, metadata = native.read_arrays(path)
        if metadata.get("format") != FORMAT:
            raise EpisodeError(f"{path} is not a part of a journal: remove it")
        meta = native.meta_of(metadata)
        for name, array in arrays.items():
            rows.setdefault(name, []).append(array)
    if "actions" not in rows:
        return None
    arrays = {name: np.concatenate(parts) for name, parts in rows.items()}
    ended = arrays["terminated"][-1] or arrays["truncated"][-1]
    arrays["truncated"] = arrays["truncated"].copy()
    arrays["truncated"][-1] |= not ended
    return Episode.from_arrays(arrays, replace(meta, extra={**meta.extra, "recovered": True})).validate()
