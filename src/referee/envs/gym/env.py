"""Any Gymnasium environment as a vector environment of the contract."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from referee.config.gym import GymEnvConfig, arguments
from referee.config.imports import import_modules
from referee.envs.contract import Observation, RefereeVectorEnv, StepResult, ends, split_views
from referee.envs.gym.share import Share, choose_renderer
from referee.errors import RefereeError
from referee.pictures import enlarged
from referee.processes import cores, main_left_out

_log = logging.getLogger(__name__)
STEPS_UNLIMITED = "has no limit on the steps of an episode: set env.*.max_episode_steps"


class GymVectorEnv(RefereeVectorEnv):
    """The environments of an id, in this process or several, through Gymnasium's own vector environments.

    * Actions are in [−1, 1] and scaled to the bounds of the environment's own.
    * `states` holds what is no image, flattened; a goal observation in the order observation, achieved_goal,
      desired_goal. Image entries are cameras under their names; `render` is the environment's `render()`.
      With `images`, a function of the environment draws them instead.
    * A state is saved as the seed of its episode and the actions since, and had again by living them again.

    >>> env = GymVectorEnv(GymEnvConfig(id="FetchReach-v4", num_envs=8))
    >>> observation, info = env.reset(seed=0)  # {"states": f32[8, 16]}, {"success": bool[8]}
    """

    def __init__(self, config: GymEnvConfig) -> None:
        self.config = config
        self.num_envs, self.obs_mode, self.image_size = config.num_envs, config.obs_mode, config.image_size
        spec = find_spec(config.id)
        self._vec = _vector_env(config, spec)
        try:
            facts = self._call("facts")[0]
            self._declare(config, spec, facts)
        except BaseException:
            self._vec.close()
            raise

    def _declare(self, config: GymEnvConfig, spec: gym.envs.registration.EnvSpec, facts: Mapping[str, Any]) -> None:
        self.cameras = tuple(facts["cameras"])
        self.can_film, self.undrawn = bool(self.cameras), facts["undrawn"]
        for words in facts["large_states"]:
            _log.warning("%s: %s", spec.id, words)
        if not self.cameras and self.obs_mode != "state":
            why = f" ({self.undrawn})" if self.undrawn else ""
            raise RefereeError(
                f"{spec.id} gives no pictures{why}: env.*.obs_mode={self.obs_mode} needs them, use state"
            )
        steps = config.max_episode_steps or facts["max_episode_steps"]
        if steps is None:
            raise RefereeError(f"{spec.id} {STEPS_UNLIMITED}")
        self.max_episode_steps = int(steps)
        self.metadata = {**RefereeVectorEnv.metadata, "render_fps": facts["fps"]}
        description = config.description or spec.id
        self.task_description = description if description.endswith(".") else f"{description}."
        _, state_size = self._vec.single_observation_space["states"].shape  # type: ignore[index]
        self.proprio_size = state_size if config.proprio_size is None else config.proprio_size
        if self.proprio_size > state_size:
            raise RefereeError(f"env.*.proprio_size={self.proprio_size}, but {spec.id} has {state_size} state entries")
        action_size = self._vec.single_action_space.shape[-1]  # type: ignore[index]
        if not state_size and self.obs_mode != "rgb":
            raise RefereeError(f"{spec.id} observes images alone: set env.*.obs_mode=rgb")
        n = self.num_envs
        self._seeds, self._episodes = np.arange(n, dtype=np.uint64), np.zeros(n, np.uint64)
        self._streak, self._elapsed = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self._actions = np.zeros((n, self.max_episode_steps, action_size), np.float32)
        self._states, self._success = np.zeros((n, state_size), np.float32), np.zeros(n, bool)
        self._told = np.zeros(n, bool)
        """Episodes in which a step has told whether it is a success."""
        self._just_finished = np.zeros(n, bool)
        self._started = self._warned = False
        self.make_spaces(action_size, state_size)

    # --- Gymnasium ---

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start new episodes everywhere, or where `options["reset_mask"]` (bool[n]) is true."""
        mask = self.check_mask(options)
        if seed is not None:
            for i, value in enumerate(self.check_seeds(seed)):
                if mask[i] and value is not None:
                    self._seeds[i], self._episodes[i] = value, 0
        self._begin(np.flatnonzero(mask), keep=False)
        self._just_finished = np.zeros(self.num_envs, bool)
        self._started = True
        return self._observe(), {"success": self._success.copy()}

    def step(self, actions: np.ndarray) -> StepResult:
        """One step of every environment; finished ones begin their next episode."""
        if not self._started:
            raise RefereeError("step() was called before the first reset(): call reset() once")
        actions = self.check_actions(actions)
        self._actions[np.arange(self.num_envs), self._elapsed] = actions
        result = self._step_all(self._actions[np.arange(self.num_envs), self._elapsed])
        self._elapsed += 1
        self._told |= result["told"].astype(bool)
        self._states, self._success = result["states"], result["success"].astype(bool)
        broken = ~np.isfinite(self._states).all(axis=1) | ~np.isfinite(result["rewards"])
        self._states = np.nan_to_num(self._states, posinf=0.0, neginf=0.0)
        sparse = self.config.reward_mode == "sparse"
        rewards = np.where(broken, 0.0, self._success.astype(np.float64) if sparse else result["rewards"])
        self._streak, ended = ends(self._streak, self._success, self.config)
        terminated = result["terminated"].astype(bool) | ended
        cut_off = result["truncated"].astype(bool) | (self._elapsed >= self.max_episode_steps) | broken
        truncated = cut_off & ~terminated
        self._just_finished = terminated | truncated
        info: dict[str, Any] = {"success": self._success.copy()}
        if self._just_finished.any():
            self._warn_without_success()
            info = self._next_episodes(info)
        return self._observe(), rewards, terminated, truncated, info

    def close_extras(self, **kwargs: Any) -> None:
        """End the environments and their processes."""
        self._vec.close()

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
        if not self.cameras:
            raise RefereeError(f"{self.config.id} draws nothing here: name env.*.cameras, e.g. [render]")
        rows = [self.cameras.index(name) for name in names]
        drawn: dict[int, np.ndarray] = {}
        for part in self._call("draw", sorted(set(ids.tolist())), final) if len(ids) else ():
            drawn |= part
        empty = np.zeros((0, len(names), self.image_size, self.image_size, 3), np.uint8)
        return split_views(np.stack([drawn[i][rows] for i in ids.tolist()]) if len(ids) else empty)

    def render_film(
        self, env_ids: Sequence[int] | np.ndarray | None = None, *, final: bool = False, pixels: int = 360
    ) -> np.ndarray:
        """Pictures for people, uint8[n,H,W,3]: the first camera as sharp as the environment draws it."""
        ids = self.check_ids(env_ids, self._just_finished if final else None)
        drawn: dict[int, np.ndarray] = {}
        for part in self._call("film", ids.tolist(), final):
            drawn |= part
        return np.stack([enlarged(drawn[i], pixels) for i in ids.tolist()])

    # --- state ---

    def save_state(self) -> dict[str, np.ndarray]:
        """See `RefereeVectorEnv.save_state`."""
        arrays = {
            "seeds": self._seeds, "episodes": self._episodes, "streak": self._streak, "elapsed": self._elapsed,
            "actions": self._actions, "states": self._states,
        }  # fmt: skip
        return {name: value.copy() for name, value in arrays.items()}

    def restore_state(self, state: dict[str, np.ndarray]) -> Observation:
        """See `RefereeVectorEnv.restore_state`. The episodes under way are lived again."""
        self.check_state(state, self.config.task)
        self._seeds[:], self._episodes[:], self._streak[:] = state["seeds"], state["episodes"], state["streak"]
        self._elapsed[:], self._actions[:] = state["elapsed"], state["actions"]
        ids = np.arange(self.num_envs)
        seeds = dict(zip(ids.tolist(), self._episode_seeds(ids, -1).tolist(), strict=True))
        self._take(self._call("replay", seeds, self._actions, self._elapsed.tolist()))
        if not np.array_equal(self._states, state["states"]):
            rows = np.flatnonzero((self._states != state["states"]).any(axis=1)).tolist()
            _log.warning(
                "%s does not repeat episodes from their seeds: environments %s go on from another state",
                self.config.id, ", ".join(map(str, rows)),
            )  # fmt: skip
        self._started = True
        self._just_finished = np.zeros(self.num_envs, bool)
        return self._observe()

    def true_states(self) -> np.ndarray:
        """The states f32[n,d] of this moment, as a copy, also where the policy sees pictures only."""
        return self._states.copy()

    # --- inside ---

    def _episode_seeds(self, ids: np.ndarray, ahead: int = 0) -> np.ndarray:
        """One seed for each environment and episode of it; `_episodes` counts those that have begun."""
        numbers = (self._episodes[ids].astype(np.int64) + ahead).clip(0).tolist()
        pairs = zip(self._seeds[ids].tolist(), numbers, strict=True)
        return np.array([np.random.SeedSequence(pair).generate_state(1)[0] >> 1 for pair in pairs], np.int64)

    def _begin(self, ids: np.ndarray, *, keep: bool) -> None:
        if len(ids):
            seeds = dict(zip(ids.tolist(), self._episode_seeds(ids).tolist(), strict=True))
            self._take(self._call("begin", seeds, keep))
        self._episodes[ids] += np.uint64(1)
        self._elapsed[ids] = self._streak[ids] = 0
        self._told[ids] = False
        self._actions[ids] = 0.0  # so that equal states are equal in all their bytes

    def _take(self, parts: Sequence[Mapping[int, tuple[np.ndarray, bool]]]) -> None:
        self._states, self._success = self._states.copy(), self._success.copy()
        for part in parts:
            for number, (state, success) in part.items():
                self._states[number], self._success[number] = state, success

    def _next_episodes(self, info: dict[str, Any]) -> dict[str, Any]:
        """Keep what the finished episodes end with, then begin the next ones; the info of now."""
        done = self._just_finished
        ids = np.flatnonzero(done)
        last: Observation = {"states": self._states[ids].copy()} if "state" in self.obs_mode else {}
        final_info = {**info, "elapsed_steps": self._elapsed.copy()}
        final_info |= {f"_{name}": done.copy() for name in final_info}
        final_info["_success"] &= self._told  # of the others nobody knows
        self._begin(ids, keep=True)
        if "rgb" in self.obs_mode:
            last |= self.render_cameras(ids, final=True)
        final_obs = np.full(self.num_envs, None, object)
        for row, i in enumerate(ids):
            final_obs[i] = {name: value[row] for name, value in last.items()}
        return {
            "success": self._success.copy(),
            "final_obs": final_obs, "_final_obs": done.copy(), "final_info": final_info, "_final_info": done.copy(),
        }  # fmt: skip

    def _observe(self) -> Observation:
        observation: Observation = {"states": self._states.copy()} if "state" in self.obs_mode else {}
        return observation | self.render_cameras() if "rgb" in self.obs_mode else observation

    def _warn_without_success(self) -> None:
        if not self._warned and not self._told[self._just_finished].all():
            _log.warning(
                "%s tells no success (info has neither success nor is_success), so its success rate stays 0, and its "
                "episodes have no labels: set env.*.success_key to a key of info, terminated, or module:function",
                self.config.id,
            )  # fmt: skip
        self._warned = True

    def _step_all(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        shares = actions.reshape(self._vec.num_envs, -1, actions.shape[1])
        with _one_line(self.config.id):
            out, *_ = self._vec.step(shares)
        return {name: np.array(value).reshape(self.num_envs, *value.shape[2:]) for name, value in out.items()}

    def _call(self, name: str, *arguments: Any) -> Sequence[Any]:
        with _one_line(self.config.id):
            return self._vec.call(name, *arguments)


class _one_line:
    """A process that died is one line."""

    def __init__(self, name: str | None) -> None:
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, EOFError | BrokenPipeError | ConnectionError | gym.error.ClosedEnvironmentError):
            raise RefereeError(
                f"a process of the environments {self._name} ended; start again, or go on from a checkpoint with "
                "runner.resume_dir"
            ) from error


def find_spec(name: str | None) -> gym.envs.registration.EnvSpec:
    """What Gymnasium knows of an id; one line where it knows nothing."""
    if not name:
        raise RefereeError("env.*.id is not given: name an environment of Gymnasium, e.g. env.train.id=FetchReach-v4")
    choose_renderer()
    module, colon, plain = name.rpartition(":")
    try:
        if colon:
            import_modules([module], key="env.*.id")
        elif name not in gym.registry:
            _register_suites(name)
        return gym.spec(plain)
    except (gym.error.Error, ImportError) as error:
        raise RefereeError(
            f"env.*.id={name}: {str(error).splitlines()[0].rstrip('.')}; name the package that registers it too, as "
            "package:Name-v0 or in runner.imports"
        ) from error


def _register_suites(name: str) -> None:
    """Import a known suite whose environments register themselves when it is imported."""
    if name.startswith(("Fetch", "Hand", "Adroit", "PointMaze", "AntMaze", "FrankaKitchen")):
        gym.register_envs(import_module("gymnasium_robotics"))


def _vector_env(config: GymEnvConfig, spec: gym.envs.registration.EnvSpec) -> AsyncVectorEnv | SyncVectorEnv:
    count = processes(config.num_envs, config.num_processes)
    size = config.num_envs // count
    makers = [
        partial(
            Share, spec, first=i * size, count=size, kwargs=arguments(config.kwargs),
            max_episode_steps=config.max_episode_steps, cameras=config.cameras, images=config.images,
            image_size=config.image_size, success_key=config.success_key, keep_final_images=config.keep_final_images,
        )
        for i in range(count)
    ]  # fmt: skip
    try:
        if count == 1:
            return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)
        return _in_processes(makers)
    except (TypeError, gym.error.Error, ImportError) as error:
        raise RefereeError(f"env.*.id={config.id} cannot be made: {str(error).splitlines()[0]}") from error


def _in_processes(makers: Sequence[Any]) -> AsyncVectorEnv:
    context = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    pickled = [cloudpickle.dumps(maker) for maker in makers]  # while __main__ is there: what it defines goes by value
    with main_left_out():
        return AsyncVectorEnv(
            [partial(_make, each) for each in pickled], context=context, autoreset_mode=AutoresetMode.DISABLED
        )


def _make(pickled: bytes) -> Share:
    share: Share = cloudpickle.loads(pickled)()
    return share


def processes(num_envs: int, limit: int) -> int:
    """How many processes share the environments equally: the largest divisor of their number within the limit."""
    limit = min(num_envs, limit or cores())
    return next(count for count in range(limit, 0, -1) if num_envs % count == 0)
