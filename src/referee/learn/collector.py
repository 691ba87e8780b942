"""Lets a policy act in environments, and records what happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from referee.envs.contract import StepResult
from referee.rl import checkpoint
from referee.rl.policy import Acts
from referee.rl.rollout import Rollout
from referee.workers.env import EnvWorker, true_success


class Watches(Protocol):
    """A reward source, as far as a rollout knows it."""

    def begin(self) -> None:
        """A rollout begins."""

    def watch(self, step: int, result: StepResult) -> np.ndarray | None:
        """See the result of a step; says which episodes end here, bool[N], or None for none."""


class Collector:
    """Acts with a policy; its exploration noise comes from a generator of its own."""

    def __init__(self, policy: Acts, *, seed: int | Sequence[int]) -> None:
        self.policy = policy
        self.random = np.random.default_rng(seed)

    def collect(self, env: EnvWorker, rollout: Rollout, reward: Watches | None = None, *, blind: bool = False) -> None:
        """Fill `rollout` with the next steps of `env`; the reward source watches, and may end episodes.

        blind: act evenly at random, whatever is seen.
        """
        rollout.begin()
        if reward is not None:
            reward.begin()
        shape = rollout.actions.shape[1:]
        for step in range(rollout.steps):
            before = env.observation
            if blind:
                actions = self.random.uniform(-1.0, 1.0, shape).astype(np.float32)
            else:
                actions = self.policy.act(before, noise=self.random.standard_normal(shape, dtype=np.float32))
            watch = None if reward is None else partial(reward.watch, step)
            result = env.step(actions, watch)
            rollout.add(step, before, actions, result, true_success(result))


def acting_state(worker: EnvWorker, collector: Collector) -> dict[str, np.ndarray]:
    """What those who act need to go on."""
    state = {f"worker.{name}": value for name, value in worker.save_state().items()}
    return {**state, "noise": checkpoint.generator_state(collector.random)}


def restore_acting(worker: EnvWorker, collector: Collector, state: Mapping[str, np.ndarray]) -> None:
    """The inverse of `acting_state`."""
    worker.restore_state({k.removeprefix("worker."): v for k, v in state.items() if k.startswith("worker.")})
    checkpoint.restore_generator(collector.random, state["noise"])
