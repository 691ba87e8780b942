"""ManiSkill's tasks as a vector environment of ours."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np

from referee.config.maniskill import ManiSkillEnvConfig
from referee.envs.contract import Observation, RefereeVectorEnv, StepResult, ends, split_views
from referee.envs.maniskill.pool import Pool
from referee.errors import MissingDependency, RefereeError


class ManiSkillVectorEnv(RefereeVectorEnv):
    """Any task of ManiSkill 3 with a state and a success.

    On the CPU a state is saved as the seed of its episode and the actions since, and had again by living them again:
    exact for every task, whatever it hides. On a GPU it is saved as ManiSkill's own state vector.
    """

    def __init__(self, config: ManiSkillEnvConfig) -> None:
        for module in ("mani_skill", "sapien"):
            if importlib.util.find_spec(module) is None:
                raise MissingDependency(f"ManiSkill environments need {module}: pip install 'referee-rl[maniskill]'")
        self.config = config
        self.num_envs = config.num_envs
        self.obs_mode = config.obs_mode
        self.max_episode_steps = config.max_episode_steps
        self.cameras = tuple(config.cameras)
        self.image_size = config.image_size
        self._worlds = _worlds(config)
        facts = self._worlds.facts
        self.metadata = {**RefereeVectorEnv.metadata, "render_fps": facts.control_hz}
        self.task_description = facts.description
        self.proprio_size = facts.proprio_size
        self._seeds = np.arange(self.num_envs, dtype=np.uint64)
        self._episodes = np.zeros(self.num_envs, np.uint64)
        self._held = np.zeros(self.num_envs, np.int64)
        self._just_finished = np.zeros(self.num_envs, bool)
        self._started = False
        self._scale = np.where(facts.relative, np.float32(config.action_scale), np.float32(1.0))
        self.make_spaces(facts.action_size, facts.state_size)
        self._has_state = self.obs_mode in ("state", "state+rgb")
        self._has_images = self.obs_mode in ("rgb", "state+rgb")

    # --- Gymnasium ---

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start new episodes everywhere, or where `options["reset_mask"]` (bool[n]) is true; see `PandaVectorEnv`."""
        mask = self.check_mask(options)
        if seed is not None:
            for i, value in enumerate(self.check_seeds(seed)):
                if mask[i] and value is not None:
                    self._seeds[i], self._episodes[i] = value, 0
        self._begin(np.flatnonzero(mask), keep=False)
        self._just_finished[:] = False
        self._started = True
        if self.tell_progress:
            self._worlds.look(tell_progress=True)
        return self._observe(), self._truth()

    def step(self, actions: np.ndarray) -> StepResult:
        """One control step of every environment; finished ones begin their next episode."""
        if not self._started:
            raise RefereeError("step() was called before the first reset(): call reset() once")
        actions = self.check_actions(actions)
        arrays = self._worlds.arrays
        arrays.actions[np.arange(self.num_envs), arrays.elapsed] = actions * self._scale
        self._worlds.step(tell_progress=self.tell_progress)
        arrays.elapsed += 1

        info = self._truth()
        success = info["success"]
        broken = ~np.isfinite(arrays.states).all(axis=1)
        np.nan_to_num(arrays.states, copy=False, posinf=0.0, neginf=0.0)
        rewards = success.astype(np.float64) if self.config.reward_mode == "sparse" else arrays.rewards.copy()
        rewards[broken] = 0.0
        self._held, terminated = ends(self._held, success, self.config)
        truncated = ((arrays.elapsed >= self.max_episode_steps) | broken) & ~terminated
        self._just_finished = terminated | truncated
        if self._just_finished.any():
            info = self._next_episodes(info)
        return self._observe(), rewards, terminated, truncated, info

    def close_extras(self, **kwargs: Any) -> None:
        """End the workers."""
        self._worlds.close()

    # --- pictures ---

    def render_cameras(
        self,
        env_ids: Sequence[int] | np.ndarray | None = None,
        *,
        final: bool = False,
        cameras: Sequence[str] | None = None,
    ) -> Observation:
        """See `RefereeVectorEnv.render_cameras`."""
        ids = self.check_ids(env_ids, self._just_finished if final else None)
        names = self.check_cameras(cameras)
        size, n = self.image_size, self.num_envs
        drawn = [self._worlds.draw(ids[i : i + n].tolist(), final, names) for i in range(0, len(ids), n)]
        return split_views(np.concatenate([np.zeros((0, len(names), size, size, 3), np.uint8), *drawn]))

    # --- state ---

    def save_state(self) -> dict[str, np.ndarray]:
        """See `RefereeVectorEnv.save_state`."""
        arrays = self._worlds.arrays
        own = {
            "seeds": self._seeds, "episodes": self._episodes, "held": self._held,
            "elapsed": arrays.elapsed, "actions": arrays.actions,
        }  # fmt: skip
        return {name: value.copy() for name, value in (own | self._worlds.extra_state()).items()}

    def restore_state(self, state: dict[str, np.ndarray]) -> Observation:
        """See `RefereeVectorEnv.restore_state`."""
        self.check_state(state, self.config.task)
        arrays = self._worlds.arrays
        self._seeds[:], self._episodes[:], self._held[:] = state["seeds"], state["episodes"], state["held"]
        arrays.elapsed[:], arrays.actions[:] = state["elapsed"], state["actions"]
        everything = np.arange(self.num_envs)
        # `_episodes` counts those that have begun.
        self._worlds.replay(self._episode_seeds(everything, -1), state, tell_progress=self.tell_progress)
        self._started = True
        self._just_finished = np.zeros(self.num_envs, bool)
        return self._observe()

    def true_states(self) -> np.ndarray:
        """The states f32[n,d] of this moment, as a copy, for experts: also where the policy sees pictures only."""
        return self._worlds.arrays.states.copy()

    @property
    def elapsed(self) -> np.ndarray:
        """Steps of the present episodes, i64[n]."""
        return self._worlds.arrays.elapsed

    # --- inside ---

    def _episode_seeds(self, ids: np.ndarray, ahead: int = 0) -> np.ndarray:
        """One seed of ManiSkill for each environment and episode of it."""
        pairs = zip(
            self._seeds[ids].tolist(), (self._episodes[ids].astype(np.int64) + ahead).clip(0).tolist(), strict=True
        )
        return np.array([np.random.SeedSequence(pair).generate_state(1)[0] >> 1 for pair in pairs], np.int64)

    def _begin(self, ids: np.ndarray, *, keep: bool) -> None:
        if len(ids):
            self._worlds.begin(ids, self._episode_seeds(ids), keep=keep)
        self._episodes[ids] += np.uint64(1)
        self._worlds.arrays.elapsed[ids] = 0
        self._worlds.arrays.actions[ids] = 0.0  # so that equal states are equal in all their bytes
        self._held[ids] = 0

    def _next_episodes(self, info: dict[str, Any]) -> dict[str, Any]:
        """Keep what the finished episodes end with, then begin the next ones; returns what to tell now."""
        done, arrays = self._just_finished, self._worlds.arrays
        ids = np.flatnonzero(done)
        last: Observation = {"states": arrays.states[ids].copy()} if self._has_state else {}
        final_info = {**info, "elapsed_steps": arrays.elapsed.copy()}
        final_info |= {f"_{name}": done.copy() for name in final_info}
        self._begin(ids, keep=True)
        if self.tell_progress:
            self._worlds.look(tell_progress=True)
        if self._has_images:
            last |= self.render_cameras(ids, final=True)
        final_obs = np.full(self.num_envs, None, object)
        for row, i in enumerate(ids):
            final_obs[i] = {name: value[row] for name, value in last.items()}
        return self._truth() | {
            "final_obs": final_obs,
            "_final_obs": done.copy(),
            "final_info": final_info,
            "_final_info": done.copy(),
        }

    def _truth(self) -> dict[str, Any]:
        arrays, facts = self._worlds.arrays, self._worlds.facts
        truth: dict[str, Any] = {"success": arrays.success.copy()}
        if facts.grasp:
            truth["grasp"] = arrays.grasp.copy()
        if self.tell_progress and facts.progress:
            truth["progress"] = arrays.progress.copy()
        return truth

    def _observe(self) -> Observation:
        observation: Observation = {"states": self._worlds.arrays.states.copy()} if self._has_state else {}
        return observation | self.render_cameras() if self._has_images else observation


def _worlds(config: ManiSkillEnvConfig) -> Any:
    """Who simulates: a GPU where there is one (or where it is asked for), else processes."""
    import torch

    cuda = torch.cuda.is_available()
    if config.sim_backend == "gpu" and not cuda:
        raise RefereeError("env.*.sim_backend=gpu needs CUDA, which torch does not find: set it to auto or cpu")
    if config.sim_backend == "cpu" or not cuda:
        return Pool(config)
    from referee.envs.maniskill.gpu import Batch

    return Batch(config)
