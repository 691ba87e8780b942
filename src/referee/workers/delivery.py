"""What those who act send to those who judge and learn."""

from __future__ import annotations

from dataclasses import dataclass, field

from referee.models.contract import Verdict
from referee.rewards import Scored
from referee.rewards.history import Windows
from referee.rl.rollout import Rollout
from referee.workers.reward import Drawn, Looked


@dataclass(frozen=True)
class Said:
    """What a judge says of what was drawn in a rollout."""

    verdict: Verdict
    looked: Looked
    version: int
    """Of the model that said it."""
    seconds: float
    """Spent on it."""


@dataclass
class Delivery:
    """A rollout on its way from those who act to those who judge and learn."""

    rollout: Rollout
    drawn: Drawn | Windows | None
    """What a reward model looks at; None where the environment pays."""
    scored: Scored | None
    """What it said already, where its verdict ends episodes;"""
    looked: Looked | None
    """and what it found in those frames."""
    finished: dict[str, list[float]]
    """Statistics of the episodes that ended in it."""
    steps: int
    """Environment steps up to its end, of all who act."""
    made: float
    """When, on the clock that all processes of a machine share."""
    waited: float = 0.0
    """Share of the time since the last one in which the environments waited for others."""
    said: Said | None = None
    """What a judge said of it, on its way."""
    who: int = 0
    """Which crew made it."""
    updates: int = 0
    """Of the learner whose weights acted."""
    numbers: dict[str, float] = field(default_factory=dict)
    """What was found when it was judged."""
