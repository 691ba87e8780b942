"""The env worker: steps environments and keeps count of their episodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from referee.envs import Observation, RefereeVectorEnv

StepResult = tuple[Observation, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]
STATISTICS = ("success_once", "success_at_end", "return", "episode_length")


class EnvWorker:
    """Owns a vector env, its present observation, and the episodes under way."""

    def __init__(self, env: RefereeVectorEnv, *, seed: int) -> None:
        self.env = env
        self.observation, info = env.reset(seed=seed)
        self._once = info["success"].copy()
        self._returns = np.zeros(env.num_envs)
        self._lengths = np.zeros(env.num_envs, np.int64)
        self._finished: dict[str, list[float]] = {name: [] for name in STATISTICS}

    def step(self, actions: np.ndarray) -> StepResult:
        """One step of all environments; actions are clipped to the action space here."""
        result = self.env.step(np.clip(actions, -1.0, 1.0))
        self.observation, rewards, terminated, truncated, info = result
        done = terminated | truncated
        success = info["success"]
        if done.any():
            success = np.where(done, info["final_info"]["success"], success)
        self._once |= success
        self._returns += rewards
        self._lengths += 1
        if done.any():
            ends = (self._once, success, self._returns, self._lengths)
            for name, values in zip(STATISTICS, ends, strict=True):
                self._finished[name] += values[done].astype(float).tolist()
            self._once[done] = info["success"][done]
            self._returns[done] = 0.0
            self._lengths[done] = 0
        return result

    def statistics(self) -> dict[str, float]:
        """Means over the episodes that finished since the last call (none: an empty dict)."""
        means = {name: float(np.mean(values)) for name, values in self._finished.items() if values}
        self._finished = {name: [] for name in STATISTICS}
        return means

    def save_state(self) -> dict[str, np.ndarray]:
        """The environments and the episodes under way."""
        return {
            **{f"env.{name}": value for name, value in self.env.save_state().items()},
            "once": self._once.copy(),
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
        }

    def restore_state(self, state: dict[str, np.ndarray]) -> None:
        """Go on from a saved state."""
        inner = {name.removeprefix("env."): value for name, value in state.items() if name.startswith("env.")}
        self.observation = self.env.restore_state(inner)
        self._once[:], self._returns[:], self._lengths[:] = state["once"], state["returns"], state["lengths"]
        self._finished = {name: [] for name in STATISTICS}
