"""The Panda tasks as a vector environment: all arms step in C, pictures are drawn when someone looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from referee.config.schema import PandaEnvConfig
from referee.envs.contract import Observation, RefereeVectorEnv, StepResult, ends, split_views
from referee.envs.panda.tasks import task_named
from referee.envs.panda.world import World
from referee.errors import RefereeError
from referee.sim.batch import ARM, PandaBatch, SimState
from referee.sim.camera import Camera
from referee.sim.looks import Looks
from referee.sim.scene import CONTROL_HZ
from referee.sim.streams import Stream

HAND_STEP = 0.025
"""Metres that a full hand action asks for in one control step."""
JOINT_STEP = 0.06
"""Radians that a full joint action asks for in one control step."""


class PandaVectorEnv(RefereeVectorEnv):
    """Reach, PushCube, PickCube or PegInsertion with a Franka Panda at 20 Hz.

    Actions are in −1..1: with `ee_delta` f[n,4] a step of the fingertips (x, y, z) and the gripper, with
    `joint_delta` f[n,8] a step of the seven joints and the gripper; gripper −1 is closed, +1 open.
    """

    metadata = {**RefereeVectorEnv.metadata, "render_fps": CONTROL_HZ}  # noqa: RUF012

    def __init__(self, config: PandaEnvConfig) -> None:
        if config.num_envs < 1:
            raise RefereeError(f"num_envs is {config.num_envs}, but at least one environment is needed")
        self.config = config
        self.task = task_named(config.task)
        self.task_description = self.task.description
        self.num_envs = config.num_envs
        self.obs_mode = config.obs_mode
        self.max_episode_steps = config.max_episode_steps
        self.cameras = tuple(config.cameras)
        self.image_size = config.image_size
        self.proprio_size = self.task.PROPRIO
        self._sim = PandaBatch(self.task.scene, self.num_envs, num_threads=config.num_threads)
        self._camera = Camera(
            self.task.scene,
            self.cameras,
            self.image_size,
            distractors=config.randomise.distractors,
            num_threads=config.num_threads,
        )
        self._film: Camera | None = None
        self._randomised = any((config.randomise.light, config.randomise.colours, config.randomise.camera,
                                config.randomise.distractors))  # fmt: skip
        self._goal = np.zeros((self.num_envs, 3))
        self._elapsed = np.zeros(self.num_envs, np.int64)
        self._held = np.zeros(self.num_envs, np.int64)
        self._seeds = np.arange(self.num_envs, dtype=np.uint64)
        self._episodes = np.zeros(self.num_envs, np.uint64)
        self._looks = Looks.plain(self.num_envs)
        self._final_qpos = np.zeros_like(self._sim.qpos)
        self._final_goal = np.zeros_like(self._goal)
        self._final_looks = Looks.plain(self.num_envs)
        self._just_finished = np.zeros(self.num_envs, bool)
        self._started = False
        self._make_spaces()

    # --- Gymnasium ---

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start new episodes everywhere, or where `options["reset_mask"]` (bool[n]) is true.

        An integer seed gives environment i the seed + i, a sequence gives one each. Without a seed, the next
        episodes of the present seeds begin.
        """
        mask = self.check_mask(options)
        if seed is not None:
            self._seed(seed, mask)
        ids = np.flatnonzero(mask)
        self._begin(ids)
        self._started = True
        self._just_finished[:] = False
        world = World.of(self._sim, self._goal)
        return self._observe(world), self._truth(world)

    def step(self, actions: np.ndarray) -> StepResult:
        """One control step (50 ms) of every environment; finished ones begin their next episode."""
        if not self._started:
            raise RefereeError("step() was called before the first reset(): call reset() once")
        actions = self.check_actions(actions)
        arm = self._arm_target(actions[:, :-1])
        closed, opened = self.task.fingers
        unstable = self._sim.step(arm, closed + (opened - closed) * (actions[:, -1] + 1) / 2)
        self._elapsed += 1

        world = World.of(self._sim, self._goal)
        info = self._truth(world)
        success = info["success"]
        dense = self.config.reward_mode == "dense"
        rewards = self.task.dense_reward(world, success) if dense else success.astype(np.float64)
        self._held, terminated = ends(self._held, success, self.config)
        truncated = ((self._elapsed >= self.max_episode_steps) | unstable) & ~terminated
        done = terminated | truncated
        self._just_finished = done
        states = self.task.observe(world) if self._has_state else None
        if done.any():
            states, info = self._next_episodes(np.flatnonzero(done), states, info)
        return self._with_images(states), rewards, terminated, truncated, info

    def close_extras(self, **kwargs: Any) -> None:
        """Give the OpenGL contexts back."""
        self._camera.close()
        if self._film is not None:
            self._film.close()

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
        self.check_cameras(cameras)
        return split_views(self._camera.render(*self._scene_of(ids, final), cameras=cameras))

    def render_film(
        self, env_ids: Sequence[int] | np.ndarray | None = None, *, final: bool = False, pixels: int = 360
    ) -> np.ndarray:
        """Pictures for people, uint8[n,H,W,3]: the whole arm, smooth, with real shadows (slower)."""
        ids = self.check_ids(env_ids, self._just_finished if final else None)
        if self._film is None or self._film.pixels != pixels:
            if self._film is not None:
                self._film.close()
            self._film = Camera(
                self.task.scene,
                ("film",),
                pixels,
                detail="film",
                distractors=self.config.randomise.distractors,
            )
        return self._film.render(*self._scene_of(ids, final))[:, 0]

    # --- state ---

    @property
    def elapsed(self) -> np.ndarray:
        """Steps of the present episodes, i64[n]."""
        return self._elapsed

    def world(self) -> World:
        """The true state of every environment, as copies, for experts and tests."""
        return World.of(self._sim, self._goal, np.arange(self.num_envs))

    def hand_actions(self, step: np.ndarray, gripper: np.ndarray) -> np.ndarray:
        """Actions in this env's control mode that move the fingertips by `step` f64[n,3] metres, as far as allowed."""
        if self.config.control_mode == "ee_delta":
            moves = step / HAND_STEP
        else:
            arm = self._sim.hand_target(step, self.task.low, self.task.high)
            moves = (arm - self._sim.qpos[:, ARM]) / JOINT_STEP
        # A move that is too long is shortened, not bent.
        moves = moves / np.maximum(np.abs(moves).max(axis=1, keepdims=True), 1.0)
        return np.concatenate([moves, gripper[:, None]], axis=1).astype(np.float32)

    def save_state(self) -> dict[str, np.ndarray]:
        """See `RefereeVectorEnv.save_state`."""
        looks = {f"looks_{name}": value.copy() for name, value in vars(self._looks).items()}
        return {
            "simulation": self._sim.save().rows,
            "goal": self._goal.copy(),
            "elapsed": self._elapsed.copy(),
            "held": self._held.copy(),
            "seeds": self._seeds.copy(),
            "episodes": self._episodes.copy(),
            **looks,
        }

    def restore_state(self, state: dict[str, np.ndarray]) -> Observation:
        """See `RefereeVectorEnv.restore_state`."""
        self.check_state(state, self.task.name)
        self._sim.restore(SimState(rows=state["simulation"]))
        for name in ("goal", "elapsed", "held", "seeds", "episodes"):
            getattr(self, f"_{name}")[:] = state[name]
        for name, value in vars(self._looks).items():
            value[:] = state[f"looks_{name}"]
        self._started = True
        self._just_finished = np.zeros(self.num_envs, bool)
        return self._observe(World.of(self._sim, self._goal))

    # --- inside ---

    def _make_spaces(self) -> None:
        actions = 4 if self.config.control_mode == "ee_delta" else 8
        self._has_state = self.obs_mode in ("state", "state+rgb")
        self._has_images = self.obs_mode in ("rgb", "state+rgb")
        self.make_spaces(actions, self.task.observe(World.of(self._sim, self._goal)).shape[1])

    def _seed(self, seed: int | Sequence[int | None], mask: np.ndarray) -> None:
        seeds = self.check_seeds(seed)
        for i in np.flatnonzero(mask):
            value = seeds[i]
            if value is not None:
                self._seeds[i] = value
                self._episodes[i] = 0

    def _begin(self, ids: np.ndarray) -> None:
        """Put the environments `ids` at the start of their next episode."""
        seeds, episodes = self._seeds[ids], self._episodes[ids]
        start = self.task.start(Stream(seeds, episodes))
        self._goal[ids] = start.goal
        self._sim.place(ids, start.arm, fingers=start.fingers, cube=start.cube, socket=start.goal)
        if self._randomised:
            look = self.config.randomise
            look_seeds = seeds if look.seed is None else np.full_like(seeds, look.seed) + ids.astype(np.uint64)
            self._looks.redraw(
                ids,
                Stream(look_seeds, episodes, purpose=1).uniform,
                light=look.light,
                colours=look.colours,
                camera=look.camera,
            )
        self._episodes[ids] += np.uint64(1)
        self._elapsed[ids] = 0
        self._held[ids] = 0

    def _next_episodes(
        self, ids: np.ndarray, states: np.ndarray | None, info: dict[str, Any]
    ) -> tuple[np.ndarray | None, dict[str, Any]]:
        """Keep what the finished episodes end with, then reset them; returns the states and truth to show now."""
        done = self._just_finished
        self._final_qpos[ids] = self._sim.qpos[ids]
        self._final_goal[ids] = self._goal[ids]
        for name, value in vars(self._looks).items():
            getattr(self._final_looks, name)[ids] = value[ids]
        last: Observation = {}
        if states is not None:
            last["states"] = states[ids]
        if self._has_images:
            last |= self.render_cameras(ids, final=True)
        final_obs = np.full(self.num_envs, None, object)
        for row, i in enumerate(ids):
            final_obs[i] = {name: value[row] for name, value in last.items()}
        final_info = {**info, "elapsed_steps": self._elapsed.copy()}
        final_info |= {f"_{name}": done.copy() for name in final_info}

        self._begin(ids)
        fresh = World.of(self._sim, self._goal, ids)
        now: dict[str, Any] = {}
        for name, value in self._truth(fresh).items():
            now[name] = info[name].copy()
            now[name][ids] = value
        if states is not None:
            states[ids] = self.task.observe(fresh)
        now |= {
            "final_obs": final_obs,
            "_final_obs": done.copy(),
            "final_info": final_info,
            "_final_info": done.copy(),
        }
        return states, now

    def _arm_target(self, moves: np.ndarray) -> np.ndarray:
        if self.config.control_mode == "ee_delta":
            return self._sim.hand_target(HAND_STEP * moves, self.task.low, self.task.high)
        return self._sim.qpos[:, ARM] + JOINT_STEP * moves

    def _truth(self, world: World) -> dict[str, Any]:
        truth: dict[str, Any] = {"success": self.task.success(world)}
        grasp = self.task.grasp(world)
        if grasp is not None:
            truth["grasp"] = grasp
        if self.tell_progress:
            truth["progress"] = np.where(truth["success"], 1.0, self.task.value(world)).astype(np.float32)
        return truth

    def _observe(self, world: World) -> Observation:
        return self._with_images(self.task.observe(world) if self._has_state else None)

    def _with_images(self, states: np.ndarray | None) -> Observation:
        observation: Observation = {} if states is None else {"states": states}
        if self._has_images:
            observation |= self.render_cameras()
        return observation

    def _scene_of(self, ids: np.ndarray, final: bool) -> tuple[np.ndarray, np.ndarray, Looks | None]:
        qpos, goal = (self._final_qpos, self._final_goal) if final else (self._sim.qpos, self._goal)
        looks = (self._final_looks if final else self._looks).take(ids) if self._randomised else None
        return qpos[ids], goal[ids], looks
