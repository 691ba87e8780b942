"""An alarm inside a reward wrapper: it looks at what is scored every now and then, and warns once."""

from __future__ import annotations

import logging

import numpy as np

from referee.errors import RefereeError
from referee.models.artifact import Artifact
from referee.rewards.alarm import Alarm
from referee.rewards.scored import ScoredBuffer

FRAMES, VIEWS = 128, 16
"""Scored frames between looks, and how many of them are looked at once more from another view."""
_log = logging.getLogger(__name__)


class Watch:
    """Hears of every scored frame, and lets an alarm look at them together."""

    def __init__(self, artifact: Artifact) -> None:
        self._check(artifact)
        self.alarm = Alarm(artifact)
        self.numbers: dict[str, float] = {}
        """What the alarm said last, under its log names; empty before it has seen enough."""
        self._buffer, self._waiting = ScoredBuffer(FRAMES), 0

    @property
    def raised(self) -> bool:
        """Whether the alarm is raised now."""
        return self.alarm.raised_at is not None

    def take(self, artifact: Artifact) -> None:
        """Watch another model from now on; the alarm begins anew."""
        self._check(artifact)
        self.alarm.take(artifact)
        self._buffer, self._waiting, self.numbers = ScoredBuffer(FRAMES), 0, {}

    def add(
        self, images: np.ndarray, summary: np.ndarray, probability: np.ndarray, *, step: int, threshold: float
    ) -> None:
        """Frames uint8[n,V,H,W,3] that were scored, what the model saw in them f32[n,e] and said of them f32[n]."""
        self._buffer.add(images, summary, probability, None)
        self._waiting += len(probability)
        if self._waiting < FRAMES or (frames := self._buffer.take()) is None:
            return
        self._waiting, quiet = 0, not self.raised
        rows = np.arange(min(VIEWS, len(frames)))
        self.numbers = self.alarm.look(frames.summary, frames.probability, frames.images[rows], rows, step, threshold)
        if quiet and self.raised:
            _log.warning("alarm at step %s: %s", f"{step:,}", self.alarm.reason())

    def _check(self, artifact: Artifact) -> None:
        if artifact.reference is None:
            raise RefereeError(
                f"alarm=True: {artifact.folder or 'the artifact'} does not say what its training frames look like: "
                "leave alarm out, or train the model with Referee"
            )
