"""What a learner is to whoever trains with it: it remembers rollouts, learns from them, and can be saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from referee.rewards.source import RewardSource
from referee.rl.replay import Replay
from referee.rl.rollout import Rollout
from referee.rl.threads import Threads

State = tuple[dict[str, torch.Tensor], dict[str, np.ndarray]]
"""Tensors and arrays by name, as a checkpoint keeps them."""


@dataclass(frozen=True)
class Pace:
    """For a learner beside which others act: after every so many updates, new weights are published.

    What is due in one iteration beyond `most` updates is given up, so that nothing piles up.
    """

    every: int
    most: int
    publish: Callable[[], None]


class Learner(Protocol):
    """PPO and SAC."""

    generator: torch.Generator
    threads: Threads
    updates: int
    """Made so far, where weights are counted by them."""

    @property
    def off_policy(self) -> bool:
        """Whether it learns again from what it remembers."""
        ...

    @property
    def keeps_frames(self) -> bool:
        """Whether frames that a reward model scored must be kept, so that a better one can score them again."""
        ...

    @property
    def demos(self) -> Replay | None:
        """Demonstrations."""
        ...

    def remember(self, rollout: Rollout) -> None:
        """Take a rollout in."""

    def learn(self, *, progress: float, iteration: int, pace: Pace | None = None) -> dict[str, float]:
        """Learn from what was taken in; returns the metrics. progress: the share of the run that is done, 0..1."""
        ...

    def rescore(self, reward: RewardSource) -> int:
        """Let the present reward model score all that is remembered; returns how many frames it looked at."""
        ...

    def save_state(self) -> State:
        """What is needed to go on."""
        ...

    def restore_state(self, tensors: Mapping[str, torch.Tensor], arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from a saved state."""
