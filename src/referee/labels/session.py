"""A person at the keyboard: presses become words in the log, behind the frames that they are about."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import numpy as np

from referee.episodes import EpisodeStore
from referee.episodes.episode import HELD
from referee.labels.keyboard import KeyboardLabels
from referee.labels.log import LabelLog, Word

_log = logging.getLogger(__name__)


class LabelSession:
    """Labels of a store by key. One thread presses and sees, another may write."""

    def __init__(self, store: EpisodeStore, *, who: str, ends_on: Sequence[str] = ()) -> None:
        self.log = LabelLog.of(store)
        self._labels = KeyboardLabels(who=who, ends_on=ends_on)
        self._lock = threading.Lock()
        self._labels.remember({row.id: row.steps + 1 for row in store.rows.values()}, self.log.standing())

    @property
    def counts(self) -> tuple[int, int]:
        """Frames labelled success, and fail."""
        return self._labels.counts

    @property
    def state(self) -> bool | None:
        """What is said of frames as they come."""
        return self._labels.state

    def begin(self, episode: str) -> None:
        """The first frame of another episode."""
        with self._lock:
            self._labels.begin(episode)
            self._labels.see()

    def hear(self, keys: Sequence[str], *, further: bool = True) -> tuple[bool, bool]:
        """Keys that were pressed at the newest frame, a further one or that of before; returns (ends, stops)."""
        with self._lock:
            if further:
                self._labels.see()
            said = [each for key in keys if (each := self._labels.press(key)) is not None]
        for each in said:
            _log.info("%s", each.text)
        return any(each.ends for each in said), any(each.stops for each in said)

    def prepare(self) -> Callable[[], None]:
        """What is to be said by now; call the result once the frames are on disk."""
        with self._lock:
            words, undone = self._labels.take()

        def write() -> None:
            if words or undone:
                numbers = self.log.extend([*words, *undone])
                with self._lock:
                    self._labels.wrote(words, numbers[: len(words)], undone)

        return write


def silence_held(store: EpisodeStore, log: LabelLog) -> int:
    """Say that nobody knows what frames show that were taken while the arm held; returns how many there are.

    Such a frame may be old, so what a person saw at that moment is not what is in it.
    """
    words, held = [], 0
    said = {(word.episode, word.frames) for word in log.words if word.source == "rule" and word.who == HELD}
    for episode in store:
        frames = np.flatnonzero(episode.signals.get(HELD, np.zeros(0, bool))).tolist()
        held += len(frames)
        words += [Word(episode.meta.id, None, frame, "rule", HELD) for frame in frames
                  if (episode.meta.id, frame) not in said]  # fmt: skip
    if words:
        log.extend(words)
    return held
