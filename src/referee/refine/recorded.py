"""Frames of recorded episodes, and which of them were asked about."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from referee.audit.judged import views
from referee.datasets.source import resolve
from referee.episodes import EpisodeStore
from referee.errors import RefereeError
from referee.labels.log import LabelLog
from referee.models import Artifact
from referee.refine.book import Book
from referee.refine.loop import (
    BOOK,
    POOL,
    ROUNDS,
    VERSIONS,
)


def check_same_model(out: Path, model: Artifact) -> None:
    """Refuse to go on with what another kind of model asked about, or to refine into a folder of something else."""
    if not (out / BOOK).is_dir():
        strange = [path.name for path in out.iterdir() if not path.name.startswith(".")]
        if strange and not any((out / name).exists() for name in (ROUNDS, VERSIONS)):
            raise RefereeError(f"{out} holds something else than a refinement ({strange[0]}): choose another --out")
        return
    asked = {row.cameras for row in EpisodeStore(out / BOOK, create=False).rows.values()}
    if asked - {model.spec.cameras}:
        raise RefereeError(f"{out} was begun with a model of other cameras {sorted(asked)}: choose another --out")


def not_asked(images: np.ndarray, book: Book) -> np.ndarray:
    """int[m]: the frames that are not in a book yet."""
    asked = {image.tobytes() for sheet in book.sheets() for image in sheet.images}
    return np.array([row for row, image in enumerate(images) if image.tobytes() not in asked], int)


def recorded_frames(
    store: EpisodeStore, model: Artifact, seed: int, *, last: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Frames uint8[n,V,H,W,3] of all episodes in a random order, and their labels int8[n]; some, where there are many.

    The labels are those that were recorded or given before. last: only the last state of each episode.
    """
    log, random = LabelLog.of(store), np.random.default_rng(seed)
    each = max(1, POOL // max(1, len(store)))
    images, truth = [], []
    for episode in store:
        labels = resolve(episode, log)
        rows = np.array([len(labels) - 1]) if last else np.sort(random.permutation(len(labels))[:each])
        images.append(views(episode, model.spec.cameras, slice(None))[rows])
        truth.append(labels[rows])
    if not images:
        raise RefereeError(f"{store.root} holds no episodes")
    order = random.permutation(sum(map(len, truth)))
    return np.concatenate(images)[order], np.concatenate(truth)[order]
