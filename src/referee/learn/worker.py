"""A rollout worker: environments, a copy of the policy in them, and who draws what a reward model looks at."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from referee.config import Config
from referee.config.imports import import_modules
from referee.config.learning import SACConfig
from referee.learn.batch import PolicyWeights, RolloutBatch
from referee.learn.collector import Collector, acting_state, restore_acting
from referee.learn.environments import make_env
from referee.models.packed import Packed
from referee.rewards.source import make_reward
from referee.rl.policy import PolicySpec
from referee.rl.rollout import Rollout
from referee.rl.squashed import make_policy
from referee.workers.env import EnvWorker, first_seed

GATE = "gate."
ACTING = ("worker.", "noise", GATE)
"""What a rollout worker calls its own in a checkpoint."""


class RolloutWorker:
    """Makes rollouts, in whichever process. Of several workers, each has its share of the environments of a run."""

    def __init__(self, config: Config, folder: Path, spec: PolicySpec, *, rank: int = 0, of: int = 1) -> None:
        import_modules(config.runner.imports)
        train, seed = config.env.train, config.runner.seed
        assert train is not None
        share = train.num_envs // of
        env = make_env(replace(train, num_envs=share), folder, "train")
        self.env = EnvWorker(env, seed=first_seed(seed) + rank * share)
        self.policy = make_policy(spec)
        self.collector = Collector(self.policy, seed=seed if not rank else (seed, rank))
        algorithm = config.algorithm
        self.rollout = Rollout(env, algorithm.rollout_steps, self.policy.inputs)
        self.rollout.first_env = rank * share
        self.reward = make_reward(
            config.reward, env, self.rollout.steps, hold=train.success_hold_steps, draws_only=True
        )
        self._size = self.rollout.steps * train.num_envs
        self._rank, self._pace = rank, config.runner.background.pace
        self._began = self._made = 0.0
        self._rounds = 0
        self._random_steps = algorithm.random_steps if isinstance(algorithm, SACConfig) else 0

    def collect(self, steps: int, weights: PolicyWeights) -> RolloutBatch:
        """The next rollout. steps: done so far, by all workers. weights: of the policy."""
        asked = time.monotonic()
        self._keep_pace(asked)
        self.policy.load_state_dict({name: torch.tensor(value) for name, value in weights.arrays.items()})
        watching = self.reward if self.reward.learned else None
        self.collector.collect(self.env, self.rollout, watching, blind=steps < self._random_steps)
        scores = self.reward.score_at_once(self.rollout)
        made, before = time.monotonic(), self._made or asked
        self._made = made
        return RolloutBatch(
            self.rollout.copy(), self.env.finished(), steps + self._size, self.reward.drawn(), scores,
            self.reward.features(), worker=self._rank, made=made, waited=(asked - before) / max(made - before, 1e-9),
            updates=weights.updates,
        )  # fmt: skip

    def _keep_pace(self, now: float) -> None:
        """Where environments are to run no faster than an arm, wait until the next rollout may begin."""
        if self._pace is not None:
            self._began = self._began or now
            time.sleep(max(0.0, self._began + self._rounds * self.rollout.steps / self._pace - now))
            self._rounds += 1

    def swap(self, model: Packed, version: int) -> None:
        """Let another model judge, where verdicts end episodes."""
        self.reward.swap(model.unpacked(), version)

    def save_state(self) -> dict[str, np.ndarray]:
        """What is needed to go on."""
        state = acting_state(self.env, self.collector)
        if self.reward.remembers:
            state |= {GATE + name: value for name, value in self.reward.save_state().items()}
        return state

    def restore_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from a saved state."""
        gate = {name.removeprefix(GATE): value for name, value in state.items() if name.startswith(GATE)}
        restore_acting(self.env, self.collector, state)
        if gate:
            self.reward.restore_state(gate)

    def pid(self) -> int:
        """Of the process that it lives in."""
        return os.getpid()

    def close(self) -> None:
        """Close the environments."""
        self.env.env.close()
