"""The book of a refinement: which frames were asked about, when and why, and what was answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from referee.envs.contract import join_views
from referee.episodes import Episode, EpisodeStore, Meta
from referee.errors import RefereeError
from referee.labels.log import UNKNOWN, LabelLog, Word

SOURCE = "asked"
"""Who acted in the episodes of a book: nobody, their states are frames of many episodes."""
MINED = "mined"
"""The reason of frames that nobody was asked about: those of a policy's first steps, which are failures."""


@dataclass(frozen=True, eq=False)
class Sheet:
    """Frames that are asked about together, a row each."""

    images: np.ndarray
    """uint8[k,V,H,W,3], k of 2 or more."""
    probability: np.ndarray
    """f32[k]: what the model said of them."""
    reasons: tuple[str, ...]
    """Why each was chosen: see `refine.select`."""
    step: int
    """Of the policy's training."""
    version: int
    """Of the model that judged them."""
    id: str = ""
    """Given by the book."""
    labels: np.ndarray | None = None
    """int8[k]: 1 success, 0 failure, -1 not answered; None before the book has it."""

    def __len__(self) -> int:
        return len(self.probability)

    def of(self, *reasons: str) -> np.ndarray:
        """bool[k]: the frames chosen for one of these reasons."""
        return np.array([each in reasons for each in self.reasons], bool)

    @property
    def answers(self) -> np.ndarray:
        """int8[k]: the labels, -1 where there are none."""
        return np.full(len(self), UNKNOWN, np.int8) if self.labels is None else self.labels


class Book:
    """Sheets in an episode store, answers in its label log: both can be read, and written, by any other tool.

    A sheet is kept as an episode without labels, whose states are the frames; a word of the log is about one of them.
    """

    def __init__(self, folder: Path | str, cameras: Sequence[str], *, task: str = "") -> None:
        self.folder = Path(folder)
        self.store = EpisodeStore(self.folder)
        self.log = LabelLog.of(self.store)
        self._cameras, self._task = tuple(cameras), task
        self._sheets = [_sheet(episode) for episode in self.store if episode.meta.source == SOURCE]

    @property
    def ids(self) -> list[str]:
        """Of its sheets, oldest first."""
        return [sheet.id for sheet in self._sheets]

    def rewind(self, step: int, ids: Sequence[str] | None = None) -> None:
        """Leave out what a run had not asked when it was saved at a step, and is resumed from there.

        ids: of the sheets that it had; those of the steps up to there, if nobody knows. All of it stays in the store.
        """
        kept = {sheet.id for sheet in self._sheets if sheet.step <= step} if ids is None else set(ids)
        self._sheets = [sheet for sheet in self._sheets if sheet.id in kept]

    def add(self, sheet: Sheet) -> Sheet:
        """Keep a sheet; it is on disk when this returns."""
        if len(sheet) < 2:
            raise RefereeError(f"a sheet of {len(sheet)} frames cannot be kept: ask about 2 or more")
        kept = replace(sheet, id=self.store.append(_episode(sheet, self._cameras, self._task)))
        self._sheets.append(kept)
        return kept

    def answer(self, sheet: Sheet, values: Sequence[bool | None], *, source: str, who: str, anew: bool = False) -> None:
        """Write down answers, one per frame; None is no answer, and with `anew` takes back one that is there."""
        if len(values) != len(sheet):
            raise RefereeError(f"{len(values)} answers to {len(sheet)} questions")
        words = [
            Word(sheet.id, None if value is None else bool(value), frame, source, who)
            for frame, value in enumerate(values)
            if value is not None or anew
        ]
        if words:
            self.log.extend(words)

    def sheets(self) -> list[Sheet]:
        """All sheets, oldest first, with the answers that are there by now."""
        self.log.refresh()
        labels = [np.full(len(sheet), UNKNOWN, np.int8) for sheet in self._sheets]
        place = {sheet.id: number for number, sheet in enumerate(self._sheets)}
        for word in self.log.standing():
            if word.episode in place:
                rows = labels[place[word.episode]]
                start, stop = word.frames if isinstance(word.frames, tuple) else (word.frames or 0, None)
                stop = start + 1 if isinstance(word.frames, int) else stop
                rows[start:stop] = UNKNOWN if word.value is None else int(word.value)
        return [replace(sheet, labels=found) for sheet, found in zip(self._sheets, labels, strict=True)]

    @property
    def asked(self) -> int:
        """Frames that somebody was asked about."""
        return sum(int((~sheet.of(MINED)).sum()) for sheet in self._sheets)


def _episode(sheet: Sheet, cameras: tuple[str, ...], task: str) -> Episode:
    steps = len(sheet) - 1
    observations = {"main_images": sheet.images[:, 0]}
    if sheet.images.shape[1] > 1:
        observations["extra_view_images"] = sheet.images[:, 1:]
    nothing = np.zeros(steps, bool)
    return Episode(
        observations, np.zeros((steps, 1), np.float32), np.zeros(steps, np.float32), nothing, nothing,
        signals={"probability": sheet.probability.astype(np.float32)},
        meta=Meta(task=task, source=SOURCE, cameras=cameras,
                  extra={"step": sheet.step, "version": sheet.version, "reasons": list(sheet.reasons)}),
    )  # fmt: skip


def _sheet(episode: Episode) -> Sheet:
    images, said = join_views(episode.observations), episode.meta.extra
    try:
        return Sheet(images, episode.signals["probability"], tuple(said["reasons"]), said["step"], said["version"],
                     id=episode.meta.id)  # fmt: skip
    except KeyError as error:
        raise RefereeError(f"episode {episode.meta.id} is no sheet of questions: it says no {error}") from error
