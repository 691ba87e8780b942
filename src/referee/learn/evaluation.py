"""Evaluation: the deterministic policy on episodes that are the same in every run, and the best policy so far."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from referee.config import Config, FrankaEnvConfig
from referee.learn.callbacks import Callback, MeanReward
from referee.learn.environments import make_env
from referee.learn.roll_out import EvalScorer, Outcomes, roll_out
from referee.rewards.source import scores_frames
from referee.rl.policy import Player

if TYPE_CHECKING:
    from referee.learn.trainer import Trainer

EVAL_SEED = 1_000_000
"""Evaluation episodes are the same in every run, and never those of training (`train_policy.check` sees to it)."""
WORST = -1e30
"""Less than any success, and than what any model pays."""


@dataclass
class Best:
    """The best evaluation so far."""

    success: float = WORST
    steps: int = 0


class Evaluation(Callback):
    """Evaluates every `runner.eval_interval` iterations, and at the end."""

    def __init__(self, config: Config, folder: Path) -> None:
        """A twin is evaluated on another twin, without waiting; an arm is not evaluated (`train_policy.check`)."""
        wanted = config.env.eval
        assert wanted is not None
        wanted = wanted.stand_in() if isinstance(wanted, FrankaEnvConfig) else wanted
        self.env = make_env(wanted, folder, "eval")
        self.best = Best()
        self.outcomes = Outcomes()
        self.metrics: dict[str, float] = {}
        self.seconds = 0.0
        """Spent on it."""
        self._episodes, self._interval, self._at = config.runner.eval_episodes, config.runner.eval_interval, -1

    def on_iteration(self, trainer: Trainer, metrics: dict[str, float]) -> dict[str, float]:
        """See Callback."""
        due = trainer.iteration % self._interval == 0 or trainer.finished()
        return trainer.evaluate() if due else {}

    def evaluate(self, trainer: Trainer) -> dict[str, float]:
        """The metrics; those of the last time, where no step was made since."""
        if self._at == trainer.steps or not self._episodes:
            return self.metrics
        began = time.perf_counter()
        policy, scorer = Player(trainer.policy, self.env), None
        refinement, reward = trainer.refinement, trainer.reward
        if refinement is not None and scores_frames(reward):
            hear = partial(refinement.hear, reward)
            scorer = EvalScorer(reward.manager, reward.cameras, hear, trainer.source.lock)
        self.outcomes = roll_out(self.env, policy, self._episodes, seed=EVAL_SEED, observe=policy.see, watch=scorer)
        self._at = trainer.steps
        rate = self.outcomes.rate()
        scored = {} if scorer is None else scorer.truth.log("eval/reward")
        self._keep_best(trainer, self._criterion(trainer, scored.get("eval/reward/model_success", rate.share)))
        low, high = rate.interval
        self.metrics = {
            "eval/success_at_end": rate.share,
            "eval/success_at_end_low": low,
            "eval/success_at_end_high": high,
            "eval/success_once": self.outcomes.rate(once=True).share,
            "eval/return": float(np.mean(self.outcomes.returns)),
            **scored,
        }
        self.seconds += time.perf_counter() - began
        return self.metrics

    def _criterion(self, trainer: Trainer, success: float) -> float | None:
        """What the best policy is chosen by: where a model gives the reward but says no success, by that reward."""
        lately = next((each for each in trainer.callbacks if isinstance(each, MeanReward)), None)
        return success if lately is None else lately.take()

    def _keep_best(self, trainer: Trainer, criterion: float | None) -> None:
        """Keep the best policy. Where a model gives the reward, its verdict chooses, and the truth chooses nothing."""
        if criterion is not None and criterion > self.best.success:
            self.best = Best(criterion, trainer.steps)
            trainer.save(best=True)

    def forget_best(self) -> None:
        """Another model scores from now on: what the one before said, perhaps a fooled one, is no measure for it."""
        self.best = Best()

    def summary(self) -> str:
        """The last evaluation, in words."""
        return f"success at the end {self.outcomes.rate()}" if len(self.outcomes) else "not evaluated"
