"""Recipes over recorded episodes: list, check, look at, merge. `printing_data` prints their results."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress

from referee.datasets.source import left_out
from referee.episodes import EpisodeError, EpisodeStore
from referee.episodes.formats.detect import read_named
from referee.episodes.health import Health
from referee.episodes.store import Row, refuse_foreign
from referee.errors import RefereeError
from referee.labels.log import LabelLog

_log = logging.getLogger(__name__)
LOOKED_AT = 16
"""Episodes of a store whose pictures and labels `ls` looks at."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What a source holds."""

    source: Path
    rows: tuple[Row, ...]
    """One for each episode, the newest last."""
    newest: int
    """How many of them to list one by one."""
    warnings: tuple[str, ...]


def ls(source: Path, *, rows: int = 10) -> Listing:
    """Counts, success and size, and the newest episodes."""
    listed, notes = _rows(source)
    return Listing(source=source, rows=tuple(listed), newest=rows, warnings=tuple(notes))


@dataclass(frozen=True, kw_only=True)
class Merged:
    """Several stores in one."""

    out: Path
    before: int
    """Episodes that were there already."""
    copied: int
    total: int


def merge(sources: Sequence[Path], out: Path, console: Console) -> Merged:
    """Copy the episodes and labels of several stores into one; an id that is there already must be the same file."""
    stores = [EpisodeStore(source, create=False) for source in sources]
    for store in stores:
        for reason in store.broken.values():
            raise EpisodeError(f"{reason}: move it away, or bring it back from a copy; nothing was merged")
    refuse_foreign(out)
    goal, copied = EpisodeStore(out), 0
    before = len(goal)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("merging", total=sum(map(len, stores)))
        for store in stores:
            for id in store.rows:
                progress.advance(task)
                if id in goal.rows:
                    if store.path(id).read_bytes() != goal.path(id).read_bytes():
                        raise EpisodeError(f"episode {id} is in {store.root} and in {out}, but they differ")
                    continue
                goal.append(store.read(id, verify=True))
                copied += 1
    for store in stores:
        LabelLog.of(goal).adopt(LabelLog.of(store))
    return Merged(out=out, before=before, copied=copied, total=len(goal))


def _rows(source: Path) -> tuple[list[Row], list[str]]:
    """A row for each episode, and what is wrong with them."""
    if (source / "episodes").is_dir():
        store = EpisodeStore(source, create=False)
        return list(store.rows.values()), [*left_out(store), *_sampled_warnings(store)]
    if not source.exists():
        raise RefereeError(f"{source} does not exist")
    health, rows = Health(), []
    for name, episode in read_named(source):
        health.look(episode)
        rows.append(replace(Row.of(episode, episode.nbytes), id=name))
    return rows, health.warnings()


def _sampled_warnings(store: EpisodeStore) -> list[str]:
    """What is wrong with a few episodes spread over a store; their data are not verified, so that this is quick."""
    ids = list(store.rows)
    some = [ids[i] for i in np.unique(np.linspace(0, len(ids) - 1, LOOKED_AT).round().astype(int))] if ids else []
    health, log = Health(sampled=len(some) < len(ids)), LabelLog.of(store)
    for id in some:
        episode = store.read(id)
        health.look(episode, log.resolve(episode))
    rows = store.rows.values()
    if not health.episodes or (
        any(row.success_once for row in rows) and any(row.success_at_end is False for row in rows)
    ):
        return health.picture_warnings()
    return health.warnings()
