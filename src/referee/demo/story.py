"""What happened in a demo, as data: a reward model is trained, fooled, caught and repaired, or not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from referee.metrics import Rate

FOOLED = 0.10
"""A model that says so much more than is true was fooled."""


@dataclass(frozen=True)
class Stage:
    """One step of the way; words: one or two sentences on what happened, with numbers."""

    name: str
    seconds: float
    words: str


@dataclass(frozen=True, eq=False)
class Arm:
    """One training of the policy.

    true, model: true success of training episodes at each of `steps`, and what the model said of them; nan for none.
    swaps: steps at which a better model took over.
    start, end: true success of evaluation episodes before and after.
    end_model: the share of the latter that the model calls a success.
    labels: asked of a person.
    """

    name: str
    steps: Sequence[int]
    true: Sequence[float]
    model: Sequence[float]
    alarm_at: int | None
    swaps: Sequence[int]
    start: Rate
    end: Rate
    end_model: float
    labels: int
    minutes: float
    film: Path | None = None

    @property
    def gap(self) -> float:
        """How much more than the truth the model says at the end, as a share."""
        return self.end_model - self.end.share

    @property
    def widest(self) -> tuple[float, int]:
        """The largest gap on the way and its step: of three neighbours the median, so that no outlier decides."""
        found = [(m - t, s) for s, t, m in zip(self.steps, self.true, self.model, strict=True) if not math.isnan(m - t)]
        if len(found) > 2:
            found = [sorted(found[place : place + 3])[1] for place in range(len(found) - 2)]
        return max(found, default=(math.nan, 0))

    @property
    def fooled(self) -> bool:
        """Whether the model said far more than was true, at the end or on the way."""
        return self.gap > FOOLED or self.widest[0] > FOOLED


@dataclass(frozen=True, eq=False)
class Fooled:
    """A frame uint8[V,H,W,3] that fooled the frozen model.

    after: what the refined one says, nan for none. still: whether it calls that a success, at its own threshold.
    """

    image: np.ndarray
    probability: float
    after: float
    still: bool
    step: int


@dataclass(frozen=True, eq=False)
class Card:
    """A report card in short; all cards of a story share the keys."""

    name: str
    rows: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Story:
    """Everything that the page says.

    arms: the first has the frozen model; the last, if there are more, has refinement.
    examples: captions, and frames uint8[V,H,W,3].
    links: relative paths of more files by name.
    """

    task: str
    task_words: str
    stages: Sequence[Stage]
    arms: Sequence[Arm]
    fooled: Sequence[Fooled]
    cards: Sequence[Card]
    labels: int
    label_minutes: float
    seconds_per_label: float
    robot_minutes: float
    examples: Sequence[tuple[str, np.ndarray]]
    links: Mapping[str, str]
    facts: Mapping[str, str]
