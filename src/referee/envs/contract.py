"""The contract of every environment here: Gymnasium's vector API, state-aligned truth, pictures on demand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from referee.errors import ActionError, RefereeError
from referee.pictures import enlarged

Observation = dict[str, np.ndarray]
"""`states` f32[n,d] and/or `main_images` uint8[n,H,W,3] and `extra_view_images` uint8[n,V,H,W,3], by `obs_mode`."""
StepResult = tuple[Observation, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]
"""Observation, rewards, terminated, truncated, info."""
IMAGES = ("main_images", "extra_view_images")


class Ending(Protocol):
    """When success ends an episode: the keys that every environment has for it."""

    @property
    def success_hold_steps(self) -> int:
        """Successes in a row that it takes."""

    @property
    def terminate_on_success(self) -> bool | None:
        """Whether it does at all; null, where it is left open, is a yes."""


class RefereeVectorEnv(gym.vector.VectorEnv[Observation, np.ndarray, np.ndarray], ABC):
    """A batch of environments whose truth and pictures can be asked for at any state.

    * Observations are dicts of arrays; `obs_mode` says which (`state`, `rgb`, `state+rgb`).
    * Autoreset happens in the same step: where `terminated | truncated`, the returned observation is the first one
      of the next episode, and `info["final_obs"][i]`, `info["final_info"]` tell of the last one (Gymnasium's keys,
      with the masks `_final_obs` and `_final_info`).
    * Truth is state-aligned: `info["success"][i]` (and `grasp`, where it means something) is about the very state
      that the observation `i` shows; the truth of a final state is in `info["final_info"]["success"][i]`.
    * `reset(options={"reset_mask": bool[N]})` begins anew there alone; with `"terminated": True` beside it, whoever
      watches (a recorder) knows that these episodes have ended, and were not given up.
    * Where a world says nothing of success, `success` is false, and `info["final_info"]["_success"][i]` is false at the
      end of the episode: a recorder leaves its labels out.
    * Rewards, by contrast, belong to the transition and are never those of the next episode.
    * Same seed, same actions: the same bits, whatever the number of threads or of other environments.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - Gymnasium declares it so
        "autoreset_mode": gym.vector.AutoresetMode.SAME_STEP
    }
    obs_mode: str
    cameras: tuple[str, ...]
    image_size: int
    max_episode_steps: int
    proprio_size: int
    """How many leading entries of `states` the robot measures itself: all that a policy on a real arm could know."""
    can_film: bool = True
    """Whether `render_film` gives pictures."""
    undrawn: str = ""
    """Why it draws nothing, where there are no cameras and somebody could do something about it."""
    tell_progress: bool = False
    """Set it to get `info["progress"]` f32[n] too, where the world knows how far a state is, in 0..1."""
    step_signals: tuple[str, ...] = ()
    """What may be told about steps besides: `intervened`, where `info["_intervene_action"]` says so, and `held`."""
    task_description: str
    """What is to be done, in words (vision-language models read it)."""

    @abstractmethod
    def render_cameras(
        self,
        env_ids: Sequence[int] | np.ndarray | None = None,
        *,
        final: bool = False,
        cameras: Sequence[str] | None = None,
    ) -> Observation:
        """Pictures of the present states of `env_ids` (all, if none are given), in that order.

        With `final`, of the last states of the episodes that ended in the latest step; asking for another
        environment's is an error. Returns `main_images` uint8[n,H,W,3] (the first camera) and
        `extra_view_images` uint8[n,V,H,W,3] (the others), of the env's own cameras or of some of them.
        """

    def render_film(
        self, env_ids: Sequence[int] | np.ndarray | None = None, *, final: bool = False, pixels: int = 360
    ) -> np.ndarray:
        """Pictures for people, uint8[n,H,W,3]: those of the first camera, enlarged, unless a world has better ones."""
        images = self.render_cameras(env_ids, final=final, cameras=self.cameras[:1])["main_images"]
        return np.stack([enlarged(image, pixels) for image in images])

    @abstractmethod
    def save_state(self) -> dict[str, np.ndarray]:
        """Everything that the future depends on, so that `restore_state` goes on bit by bit."""

    @abstractmethod
    def restore_state(self, state: dict[str, np.ndarray]) -> Observation:
        """Go back to a saved state; returns its observation."""

    def check_actions(self, actions: Any) -> np.ndarray:
        """The actions as f64[n,a], or one line that says what is wrong with them."""
        low, high = self.single_action_space.low, self.single_action_space.high  # type: ignore[attr-defined]
        wanted = (self.num_envs, len(low))
        array = np.asarray(actions, dtype=np.float64)
        if array.shape != wanted:
            raise ActionError(f"actions have shape {array.shape}, but {wanted} (environments, action size) is needed")
        bad = ~np.isfinite(array)
        if bad.any():
            env, part = np.argwhere(bad)[0]
            raise ActionError(
                f"action {part} of environment {env} is {array[env, part]}: the policy diverged or divides by zero; "
                "check its output before step()"
            )
        outside = (array < low - 1e-6) | (array > high + 1e-6)
        if outside.any():
            env, part = np.argwhere(outside)[0]
            raise ActionError(
                f"action {part} of environment {env} is {array[env, part]:g}, outside [{low[part]:g}, {high[part]:g}]: "
                "clip actions to the action space before step()"
            )
        return array

    # --- what implementations share ---

    def make_spaces(self, action_size: int, state_size: int) -> None:
        """Declare the spaces, by `obs_mode`, `cameras`, `image_size` and `num_envs`."""
        self.single_action_space = gym.spaces.Box(-1.0, 1.0, (action_size,), np.float32)
        spaces: dict[str, gym.Space[Any]] = {}
        if self.obs_mode in ("state", "state+rgb"):
            spaces["states"] = gym.spaces.Box(-np.inf, np.inf, (state_size,), np.float32)
        if self.obs_mode in ("rgb", "state+rgb"):
            frame = (self.image_size, self.image_size, 3)
            spaces["main_images"] = gym.spaces.Box(0, 255, frame, np.uint8)
            spaces["extra_view_images"] = gym.spaces.Box(0, 255, (len(self.cameras) - 1, *frame), np.uint8)
        self.single_observation_space = gym.spaces.Dict(spaces)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, self.num_envs)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, self.num_envs)

    def check_mask(self, options: Mapping[str, Any] | None) -> np.ndarray:
        """bool[n]: the environments that a reset with these options begins anew."""
        if not options or "reset_mask" not in options:
            return np.ones(self.num_envs, bool)
        mask = np.asarray(options["reset_mask"], bool)
        if mask.shape != (self.num_envs,):
            raise RefereeError(f"reset_mask has shape {mask.shape}, but ({self.num_envs},) is needed")
        return mask

    def check_seeds(self, seed: int | Sequence[int | None]) -> list[int | None]:
        """A seed for each environment: an integer gives environment i the seed + i."""
        if isinstance(seed, (int, np.integer)):
            if seed < 0:
                raise RefereeError(f"seed is {seed}, but it must be 0 or more")
            return [int(seed) + i for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise RefereeError(f"{len(seed)} seeds were given for {self.num_envs} environments")
        return list(seed)

    def check_ids(self, env_ids: Sequence[int] | np.ndarray | None, finished: np.ndarray | None = None) -> np.ndarray:
        """i64[k]: the environments to draw; with `finished` bool[n], the last states of those alone."""
        default = np.arange(self.num_envs) if finished is None else np.flatnonzero(finished)
        ids = default if env_ids is None else np.asarray(env_ids, np.int64).reshape(-1)
        if len(ids) and (ids.min() < 0 or ids.max() >= self.num_envs):
            raise RefereeError(f"environment ids must lie in 0..{self.num_envs - 1}, got {ids.tolist()}")
        if finished is not None and not finished[ids].all():
            late = ids[~finished[ids]].tolist()
            raise RefereeError(f"environments {late} did not finish in the latest step: no final state to draw")
        return ids

    def check_state(self, state: Mapping[str, np.ndarray], task: str) -> None:
        """Refuse a saved state that is not of an environment like this one."""
        for name, value in self.save_state().items():
            if name not in state or state[name].shape != value.shape:
                raise RefereeError(
                    f"saved environment state does not fit: {name} is {getattr(state.get(name), 'shape', 'missing')}, "
                    f"this environment ({task} × {self.num_envs}) has {value.shape}"
                )

    def check_cameras(self, cameras: Sequence[str] | None) -> list[str]:
        """The cameras to draw with: the env's own, or some of them."""
        strange = [name for name in cameras or () if name not in self.cameras]
        if strange:
            raise RefereeError(f"camera {strange[0]!r} is not one of this env's: {', '.join(self.cameras)}")
        return list(self.cameras if cameras is None else cameras)


VOID = ("hold", "unseen")
"""What an arm tells of steps in which nothing counts; in vectors with masks, `_hold` and `_unseen`."""


def void_steps(info: Mapping[str, Any]) -> np.ndarray | bool:
    """Steps in which an arm held, or whose result was not seen: bool[N], or False for none. Nothing in them counts."""
    void: np.ndarray | bool = False
    for name in VOID:
        void = void | np.asarray(info.get(f"_{name}", False))
    return void


def ends(held: np.ndarray, success: np.ndarray, config: Ending) -> tuple[np.ndarray, np.ndarray]:
    """How many successes in a row there are now, i64[n], and the episodes that these end, bool[n]."""
    held = (held + 1) * success
    return held, (held >= config.success_hold_steps) & (config.terminate_on_success is not False)


def join_views(observation: Mapping[str, np.ndarray]) -> np.ndarray:
    """Frames uint8[n,V,H,W,3]: all pictures of an observation, the main one first."""
    main, extra = observation["main_images"], observation.get("extra_view_images")
    return main[:, None] if extra is None else np.concatenate([main[:, None], extra], axis=1)


def split_views(frames: np.ndarray) -> Observation:
    """The inverse of `join_views`, as views of the same memory."""
    return {"main_images": frames[:, 0], "extra_view_images": frames[:, 1:]}
