"""A rollout on its way from those who act to those who score and learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from referee.rewards import Scores
from referee.rewards.source import Features, RemoteScores
from referee.rl.rollout import Rollout


@dataclass(frozen=True)
class PolicyWeights:
    """The weights of a policy that learns, on their way to those who act with it."""

    arrays: dict[str, np.ndarray]
    updates: int
    """Of the learner so far."""


@dataclass
class RolloutBatch:
    """A rollout, with all that must come along from where it was made."""

    rollout: Rollout
    finished: dict[str, list[float]]
    """Statistics of the episodes that ended in it."""
    steps: int
    """Environment steps up to its end, of all who act."""
    drawn: Any = None
    """What a reward model looks at, if it was made in another process."""
    scores: Scores | None = None
    """What the model said already, where its verdict ends episodes;"""
    features: Features | None = None
    """and what it found in those frames."""
    remote: RemoteScores | None = None
    """What a worker with nothing but the model says of it."""
    worker: int = 0
    """Which rollout worker made it."""
    made: float = 0.0
    """When, on the clock that all processes of a machine share."""
    waited: float = 0.0
    """Share of the time since the last one in which the environments waited for others."""
    updates: int = 0
    """Of the learner whose weights acted."""
    metrics: dict[str, float] | None = None
    """Of its relabelling; None before that."""
