"""The env worker: steps environments and keeps count of their episodes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from referee.envs.contract import RefereeVectorEnv, StepResult

Watch = Callable[[StepResult], np.ndarray | None]
SEEDS_PER_RUN = 10_000
STATISTICS = ("success_once", "success_at_end", "return", "episode_length")


def first_seed(seed: int) -> int:
    """Of the environments of a run: no two runs train on the same episodes."""
    return SEEDS_PER_RUN * seed


def true_success(result: StepResult) -> np.ndarray:
    """bool[N]: whether the states that a step led to are successes; the last states of episodes that ended."""
    _, _, terminated, truncated, info = result
    done = terminated | truncated
    return np.where(done, info["final_info"]["success"], info["success"]) if done.any() else info["success"]


class EnvWorker:
    """Owns a vector env, its present observation, and the episodes under way."""

    def __init__(self, env: RefereeVectorEnv, *, seed: int) -> None:
        self.env = env
        self.observation, info = env.reset(seed=seed)
        self._once = info["success"].copy()
        self._returns = np.zeros(env.num_envs)
        self._lengths = np.zeros(env.num_envs, np.int64)
        self._finished: dict[str, list[float]] = {name: [] for name in STATISTICS}

    def step(self, actions: np.ndarray, watch: Watch | None = None) -> StepResult:
        """One step of all environments; actions are clipped to the action space here.

        watch: sees the result, and may say which episodes end here, bool[N], although the environment goes on.
        """
        result = self.env.step(np.clip(actions, -1.0, 1.0))
        early = watch(result) if watch is not None else None
        if early is not None and early.any():
            result = self._end(early, result)
        self.observation, rewards, terminated, truncated, info = result
        done, success = terminated | truncated, true_success(result)
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

    def _end(self, early: np.ndarray, result: StepResult) -> StepResult:
        """The result with those episodes ended, and their next ones begun, as if the environment had ended them."""
        before, rewards, terminated, truncated, info = result
        last = info["final_obs"].copy() if "final_obs" in info else np.full(self.env.num_envs, None, object)
        success = true_success(result)
        for i in np.flatnonzero(early):
            last[i] = {name: value[i].copy() for name, value in before.items()}
        observation, begun = self.env.reset(options={"reset_mask": early, "terminated": True})
        told = {**info, "success": begun["success"], "final_obs": last, "final_info": {"success": success}}
        return observation, rewards, terminated | early, truncated, told

    def statistics(self) -> dict[str, float]:
        """Means over the episodes that finished since the last call (none: an empty dict)."""
        return {name: float(np.mean(values)) for name, values in self.finished().items() if values}

    def finished(self) -> dict[str, list[float]]:
        """The same, an entry per episode."""
        found, self._finished = self._finished, {name: [] for name in STATISTICS}
        return found

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
