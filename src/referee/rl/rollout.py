"""The arrays of one rollout, allocated once and filled again and again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from referee.envs.contract import Observation, RefereeVectorEnv, StepResult, void_steps
from referee.rewards.score_rollout import RolloutFrames
from referee.rl.policy import Tensors


@dataclass(frozen=True)
class Final:
    """The last observation of an episode that ended within the rollout."""

    step: int
    env: int
    observation: Observation


class Rollout:
    """T steps of N environments: what was seen, done and paid, and how episodes ended."""

    def __init__(self, env: RefereeVectorEnv, steps: int, inputs: tuple[str, ...]) -> None:
        spaces: Any = env.single_observation_space
        shape = (steps, env.num_envs)
        self.steps, self.num_envs = shape
        self.observations = {name: np.zeros((*shape, *spaces[name].shape), spaces[name].dtype) for name in inputs}
        self.actions = np.zeros((*shape, *env.single_action_space.shape), np.float32)  # type: ignore[misc]
        self.rewards = np.zeros(shape, np.float32)
        self.terminated = np.zeros(shape, bool)
        self.truncated = np.zeros(shape, bool)
        self.success = np.zeros(shape, bool)
        """The truth, to be logged beside what a reward model says; no learner reads it."""
        self.intervened = np.zeros(shape, bool)
        """Where a person acted instead of the policy; `actions` are then that person's."""
        self.held = np.zeros(shape, bool)
        """Where an arm held, so that what was seen may be old: whatever a model says of it, it is no success."""
        self.versions = np.zeros(shape, np.int32)
        """Of the reward model that paid; 0 for the first one, and where none did."""
        self.env_rewards: np.ndarray | None = None
        """f32[T,N]: the environment's own rewards, where `rewards` are what somebody else paid."""
        self.judged: RolloutFrames | None = None
        """What a reward model looked at, where a better one may have to look again."""
        self.goes_on = True
        """Whether it begins where the last one ended; not so after a worker has died."""
        self.first_env = 0
        """Which of all environments of the run is its first one."""
        self.finals: list[Final] = []
        self.last: Observation = {}
        """The observation after the last step."""

    def copy(self) -> Rollout:
        """The same in arrays of its own."""
        other = object.__new__(Rollout)
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                value = value.copy()
            elif name in ("observations", "last"):
                value = {part: array.copy() for part, array in value.items()}
            setattr(other, name, value)
        other.finals = list(self.finals)
        return other

    @classmethod
    def joined(cls, parts: Sequence[Rollout]) -> Rollout:
        """Rollouts of equally many steps that were made side by side, as one of all their environments."""
        if len(parts) == 1:
            return parts[0]
        other = object.__new__(cls)
        other.goes_on, other.first_env = all(part.goes_on for part in parts), 0
        other.steps, other.num_envs = parts[0].steps, sum(part.num_envs for part in parts)
        for name, value in vars(parts[0]).items():
            if isinstance(value, np.ndarray):
                setattr(other, name, np.concatenate([getattr(part, name) for part in parts], axis=1))
        own = [part.env_rewards for part in parts if part.env_rewards is not None]
        other.env_rewards = np.concatenate(own, axis=1) if own else None
        other.observations = {
            name: np.concatenate([part.observations[name] for part in parts], axis=1) for name in parts[0].observations
        }
        other.last = {name: np.concatenate([part.last[name] for part in parts]) for name in parts[0].last}
        firsts = np.cumsum([0, *(part.num_envs for part in parts)])
        finals = [replace(each, env=each.env + first) for part, first in zip(parts, firsts, strict=False)
                  for each in part.finals]  # fmt: skip
        other.finals = sorted(finals, key=lambda each: (each.step, each.env))
        judged = [part.judged for part in parts if part.judged is not None]
        other.judged = RolloutFrames.joined(judged) if judged else None
        return other

    def begin(self) -> None:
        """Forget the ends of the last rollout; the arrays are simply overwritten."""
        self.finals, self.goes_on = [], True
        self.env_rewards = self.judged = None

    def add(
        self,
        step: int,
        observation: Observation,
        actions: np.ndarray,
        result: StepResult,
        success: np.ndarray | None = None,
    ) -> None:
        """Store step `step`: what was seen before it, what was done, and what the environment answered.

        success: bool[N], the truth about the states that the step led to.
        """
        after, rewards, terminated, truncated, info = result
        for name, array in self.observations.items():
            array[step] = observation[name]
        self.actions[step] = actions
        if "_executed_action" in info:  # an arm that had to hold did nothing, whatever it was asked for
            self.actions[step, info["_executed_action"]] = info["executed_action"][info["_executed_action"]]
        self.held[step] = void_steps(info)
        self.intervened[step] = info.get("_intervene_action", False)
        if self.intervened[step].any():
            self.actions[step, self.intervened[step]] = info["intervene_action"][self.intervened[step]]
        self.rewards[step] = rewards
        self.terminated[step] = terminated
        self.truncated[step] = truncated
        if success is not None:
            self.success[step] = success
        for i in np.flatnonzero(terminated | truncated):
            self.finals.append(Final(step, int(i), info["final_obs"][i]))
        self.last = after

    def tensors(self) -> Tensors:
        """The observations flattened to [T·N, …], sharing memory with the arrays."""
        return {
            name: torch.from_numpy(array.reshape(self.steps * self.num_envs, *array.shape[2:]))
            for name, array in self.observations.items()
        }

    def final_tensors(self) -> Tensors:
        """Observations after the last step (N of them), then the final ones, in the order of `finals`."""
        rows: Tensors = {}
        for name in self.observations:
            ends = [final.observation[name][None] for final in self.finals]
            rows[name] = torch.from_numpy(np.concatenate([self.last[name], *ends]))
        return rows
