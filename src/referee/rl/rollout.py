"""The arrays of one rollout, allocated once and filled again and again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from referee.envs.contract import Observation, RefereeVectorEnv, StepResult
from referee.rl.policy import Tensors


@dataclass(frozen=True)
class Pictures:
    """Frames that a reward model judged in a rollout, of the states that steps led to."""

    where: np.ndarray
    """bool[T,N]"""
    frames: np.ndarray
    """uint8[m,V,H,W,3], in the order of `where`, row by row."""

    @cached_property
    def numbers(self) -> np.ndarray:
        """int[T,N]: which of the frames is of that step, where there is one."""
        return np.cumsum(self.where).reshape(self.where.shape) - 1


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
        self.versions = np.zeros(shape, np.int32)
        """Of the reward model that paid; 0 for the first one, and where none did."""
        self.env_rewards: np.ndarray | None = None
        """f32[T,N]: the environment's own rewards, where `rewards` are what somebody else paid."""
        self.judged: Pictures | None = None
        """What a reward model looked at, where a better one may have to look again."""
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

    def begin(self) -> None:
        """Forget the ends of the last rollout; the arrays are simply overwritten."""
        self.finals = []
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
            name: torch.from_numpy(array.reshape(-1, *array.shape[2:])) for name, array in self.observations.items()
        }

    def final_tensors(self) -> Tensors:
        """Observations after the last step (N of them), then the final ones, in the order of `finals`."""
        rows: Tensors = {}
        for name in self.observations:
            ends = [final.observation[name][None] for final in self.finals]
            rows[name] = torch.from_numpy(np.concatenate([self.last[name], *ends]))
        return rows
