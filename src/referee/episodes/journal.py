"""A journal of an episode that is still going on: chunks on disk, so that a kill loses at most the last second."""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from referee import files
from referee.episodes.builder import EpisodeBuilder
from referee.episodes.episode import Episode, EpisodeError, Meta
from referee.episodes.formats import native
from referee.episodes.ownership import Abandoned, Owner
from referee.episodes.store import JOURNALS, EpisodeStore, new_id

FORMAT = "referee-journal-1"
_log = logging.getLogger(__name__)


class Journal:
    """One episode, written down while it runs.

    Use it like an `EpisodeBuilder`; `finish` turns it into an episode of the store, `discard` forgets it. What a killed
    process leaves is brought back by `recover`. Another thread may call `flush` while the episode grows. If somebody
    takes its folder away, it says so and writes all of the episode to a new one.
    """

    def __init__(
        self,
        store: EpisodeStore,
        meta: Meta,
        *,
        max_seconds: float = 1.0,
        max_states: int = 100,
        say: Callable[[str], None] = _log.warning,
    ) -> None:
        """say: called with one line if the journal is taken away while it is written."""
        self.meta = meta if meta.id else replace(meta, id=new_id())
        self._store, self._say = store, say
        self._begin_folder()
        self._builder = EpisodeBuilder(self.meta)
        self._max_seconds, self._max_states = max_seconds, max_states
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
                rows = {name: list(rows) for name, rows in self._builder.rows.items()}
            try:
                self._go_on_elsewhere_if_lost()
                self._write_new(rows)
                if self._go_on_elsewhere_if_lost():
                    self._write_new(rows)
            except OSError as error:
                raise EpisodeError(f"cannot write to {self._folder} ({error.strerror})") from error
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
        id, _ = keep(self._store, self._builder.build(), self._say)
        self.discard()
        return id

    def discard(self) -> None:
        """Forget the episode."""
        with self._writing:
            self._closed = True
            if self._owner.still_there():
                shutil.rmtree(self._folder)
            self._owner.release()

    def _begin_folder(self) -> None:
        """A folder of its own: named by the id, or else by that and a number."""
        try:
            for name in _names(self.meta.id):
                self._folder = self._store.root / JOURNALS / name
                try:
                    self._folder.mkdir(parents=True)
                    break
                except FileExistsError:
                    continue
            self._owner = Owner(self._folder)
        except OSError as error:
            raise EpisodeError(f"cannot write to {self._folder} ({error.strerror})") from error
        self._written: dict[str, int] = {}
        self._chunks = 0

    def _go_on_elsewhere_if_lost(self) -> bool:
        whole = not self._chunks or _chunk(self._folder, self._chunks - 1).exists()
        if whole and self._owner.still_there():
            return False
        lost = self._folder
        self._owner.release()
        self._begin_folder()
        self._say(
            f"{lost}, the journal of the episode under way, was taken away by another process: "
            f"nothing is lost, the whole episode goes on in {self._folder}"
        )
        return True

    def _write_new(self, rows: Mapping[str, list[np.ndarray]]) -> None:
        new = {name: np.stack(some) for name, all in rows.items() if (some := all[self._written.get(name, 0) :])}
        if new:
            metadata = {"format": FORMAT, "meta": json.dumps(self.meta.to_json())}
            with files.replacing(_chunk(self._folder, self._chunks)) as temporary, temporary.open("wb") as file:
                native.write_arrays(file, new, metadata)
            self._written = {name: len(all) for name, all in rows.items()}
            self._chunks += 1

    def _flush_if_due(self) -> None:
        states = max((len(rows) - self._written.get(name, 0) for name, rows in self._builder.rows.items()), default=0)
        if states >= self._max_states or time.monotonic() - self._flushed >= self._max_seconds:
            self.flush()


def recover(store: EpisodeStore, *, force: bool = False, say: Callable[[str], None] = _log.warning) -> list[str]:
    """Turn journals that nobody writes to any more into episodes, cut off where they end; returns their ids.

    A journal whose process lives, suspended or not, is left alone, and so is one of which nobody can tell, unless
    `force`. A journal is removed only when all of its frames are in the store. say: one line about each that is left.
    """
    recovered = []
    journals = store.root / JOURNALS
    folders = sorted(path for path in journals.glob("*") if path.is_dir())
    if folders and not os.access(journals, os.W_OK):
        say(f"{journals}: {len(folders)} journals are left, because nothing can be written there")
        return []
    for folder in folders:
        with Abandoned(folder, force=force) as abandoned:
            if abandoned.reason is None:
                id = _bring_back(store, folder, say)
                recovered += [] if id is None else [id]
            elif folder.exists():
                way = ": if its run has ended, bring it back by `referee episodes check --adopt`"
                say(f"{folder} is left alone: {abandoned.reason}{way if abandoned.forcible else ''}")
    return recovered


def keep(store: EpisodeStore, episode: Episode, say: Callable[[str], None] = _log.warning) -> tuple[str, bool]:
    """See that a store holds an episode; returns its id there, and whether it had to be added or completed.

    Where the store holds a beginning of the same recording, that becomes the whole. Where something else has its id, it
    gets another one.
    """
    for id in _names(episode.meta.id):
        if not store.path(id).exists():
            if id != episode.meta.id:
                say(f"{store.root} holds another episode {episode.meta.id}: this recording is kept as {id}")
            return store.append(replace(episode, meta=replace(episode.meta, id=id))), True
        try:
            there = store.read(id, verify=True)
        except EpisodeError:
            continue  # broken, and left for a person to look at
        if "recovered" in episode.meta.extra and _holds(there, episode):
            return id, False
        if _holds(episode, there):
            return store.replace_by_longer(replace(episode, meta=replace(episode.meta, id=id))), True
    raise AssertionError("names never end")


def _bring_back(store: EpisodeStore, folder: Path, say: Callable[[str], None]) -> str | None:
    """The id of the episode that a journal became; None if nothing was to be added to the store."""
    episode, problem = _joined(folder)
    id, new = None, False
    if episode is not None:
        id, new = keep(store, episode, say)
        if problem is None and not _holds(store.read(id, verify=True), episode):  # look before anything is removed
            problem = f"{folder}: its frames are not in the store"
    if problem is None:
        shutil.rmtree(folder)
    else:
        say(f"{problem}; the frames before are in the store, the rest is left: remove {folder} if you do not need it")
    return id if new else None


def _joined(folder: Path) -> tuple[Episode | None, str | None]:
    """The episode in the chunks of a journal, up to the first that is broken, and what is wrong with that one.

    None where there is not even one step.
    """
    rows: dict[str, list[np.ndarray]] = {}
    meta, problem = Meta(), None
    chunks = sorted(path for path in folder.glob(f"*{native.SUFFIX}") if not path.name.startswith("."))
    for number, path in enumerate(chunks):
        try:
            with native.naming(path):
                arrays, metadata = native.read_arrays(path, verify=True)
                if metadata.get("format") != FORMAT or path != _chunk(folder, number):
                    raise EpisodeError("is not the next part of a journal")
                meta = native.meta_of(metadata)
        except EpisodeError as error:
            problem = str(error)
            break
        for name, array in arrays.items():
            rows.setdefault(name, []).append(array)
    if "actions" not in rows:
        return None, problem
    try:
        with native.naming(folder):
            return _cut_off({name: np.concatenate(parts) for name, parts in rows.items()}, meta, folder.name), problem
    except (EpisodeError, KeyError) as error:
        return None, str(error)


def _cut_off(arrays: dict[str, np.ndarray], meta: Meta, name: str) -> Episode:
    """The episode of these arrays, which ends with them."""
    ended = arrays["terminated"][-1] or arrays["truncated"][-1]
    arrays["truncated"][-1] |= not ended
    meta = replace(meta, id=meta.id or name, extra={**meta.extra, "recovered": True})
    return Episode.from_arrays(arrays, meta).validate()


def _holds(longer: Episode, shorter: Episode) -> bool:
    """Whether one episode begins with all frames of another; how that was ended does not matter."""
    theirs, steps = longer.arrays(), len(shorter)
    for name, rows in shorter.arrays().items():
        count = steps - 1 if name in ("terminated", "truncated") else len(rows)
        there = theirs.get(name)
        if there is None or len(there) < len(rows) or there.dtype != rows.dtype or there.shape[1:] != rows.shape[1:]:
            return False
        if there[:count].tobytes() != rows[:count].tobytes():
            return False
    return True


def _names(id: str) -> Iterator[str]:
    """The id, and others to try where that is taken."""
    return itertools.chain([id], (f"{id}~{number}" for number in itertools.count(2)))


def _chunk(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}{native.SUFFIX}"
