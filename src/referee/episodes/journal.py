"""A journal of an episode that is still going on: chunks on disk, so that a kill loses at most the last second."""

from __future__ import annotations

import json
import shutil
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
    process leaves is brought back by `recover`.
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

    def __len__(self) -> int:
        return len(self._builder)

    def start(self, observation: Mapping[str, Any], **about: Any) -> None:
        """See `EpisodeBuilder.start`."""
        self._builder.start(observation, **about)
        self._flush_if_due()

    def step(self, action: Any, observation: Mapping[str, Any], **about: Any) -> None:
        """See `EpisodeBuilder.step`."""
        self._builder.step(action, observation, **about)
        self._flush_if_due()

    def flush(self) -> None:
        """Write what is new, and wait until it is on disk."""
        new = {name: np.stack(rows[self._written.get(name, 0) :]) for name, rows in self._builder.rows.items()
               if len(rows) > self._written.get(name, 0)}  # fmt: skip
        if new:
            with files.replacing(self._folder / f"{self._chunks:06d}{native.SUFFIX}") as path, path.open("wb") as file:
                native.write_arrays(file, new, {"format": FORMAT, "meta": json.dumps(self.meta.to_json())})
            self._written = {name: len(rows) for name, rows in self._builder.rows.items()}
            self._chunks += 1
        self._flushed = time.monotonic()

    def finish(self) -> str:
        """Keep the episode in the store; returns its id."""
        id = self._store.append(self._builder.build())
        shutil.rmtree(self._folder)
        return id

    def discard(self) -> None:
        """Forget the episode."""
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
