"""ManiSkill's environments of one task, one by one on the CPU or all together on a GPU, and the pictures of states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import sapien
import torch
from mani_skill.utils import common
from sapien import physx

from referee.config.maniskill import ManiSkillEnvConfig
from referee.envs.maniskill.fast_step import FastStep, is_supported
from referee.envs.maniskill.scene import build
from referee.envs.maniskill.shared import Facts
from referee.envs.maniskill.tasks import GRASPS, describe, success_test


class World:
    """`num_envs` environments (one on the CPU), each with its present episode."""

    def __init__(
        self, config: ManiSkillEnvConfig, num_envs: int = 1, *, gpu: bool = False, draws: bool = False
    ) -> None:
        self.env = build(config, num_envs, gpu=gpu, draws=draws)
        self._success = success_test(config.task, config.success)
        self._gpu, self._draws = gpu, draws
        self.rebuilds = self.env.reconfiguration_freq != 0
        """Whether the very things in the scene differ from episode to episode."""
        self._states, self._info = self.env._last_obs, self.env.get_info()
        self._success(self._info)  # a task that cannot say so fails here
        self.facts = self._find_facts(config)
        self._fast = FastStep(self.env) if is_supported(config.task) and not (gpu or draws) else None

    def begin(self, ids: Sequence[int], seeds: Sequence[int]) -> None:
        """Start the episodes of those seeds.

        On a GPU all episodes that start together are drawn from the first seed: ManiSkill has one generator there.
        """
        if self._gpu:
            index = torch.as_tensor(list(ids), device=self.env.device)
            self._states, self._info = self.env.reset(
                seed=[int(seeds[0])] * self.env.num_envs, options={"env_idx": index}
            )
            return
        if not self.rebuilds and not self._draws:
            self._renew()
        self._states, self._info = self.env.reset(seed=[int(seeds[0])])
        if self.rebuilds and self._fast is not None:
            self._fast = FastStep(self.env)

    def step(self, actions: np.ndarray) -> np.ndarray:
        """One control step; returns the rewards f64[n]."""
        if self._fast is not None:
            self._states, rewards, self._info = self._fast.step(actions)
        else:
            self._states, rewards, _, _, self._info = self.env.step(torch.as_tensor(actions, device=self.env.device))
        return _numpy(rewards).astype(np.float64)

    @property
    def states(self) -> np.ndarray:
        """f32[n,d] of the present moment."""
        return _numpy(self._states)

    @property
    def success(self) -> np.ndarray:
        """bool[n]"""
        return _numpy(self._success(self._info)).astype(bool)

    @property
    def grasp(self) -> np.ndarray:
        """bool[n]; only where `facts.grasp`."""
        return _numpy(next(self._info[name] for name in GRASPS if name in self._info)).astype(bool)

    @property
    def progress(self) -> np.ndarray:
        """f32[n] in 0..1: the dense reward of doing nothing here; only where `facts.progress`."""
        env = self.env
        idle = torch.zeros((env.num_envs, self.facts.action_size), device=env.device)
        observation = env._get_obs_state_dict(self._info)
        value = _numpy(env.compute_normalized_dense_reward(obs=observation, action=idle, info=self._info))
        return np.where(self.success, 1.0, np.clip(value, 0.0, 1.0)).astype(np.float32)

    def snapshot(self) -> np.ndarray:
        """f32[n,k]: where all things are, for a picture."""
        return _numpy(self.env.get_state())

    def restore(self, states: np.ndarray) -> None:
        """Put all things where a snapshot says."""
        self.env.set_state(torch.as_tensor(states, device=self.env.device))
        self._info = self.env.get_info()
        self._states = self.env.get_obs(self._info)

    def _renew(self) -> None:
        """Move everything into a new PhysX scene.

        A scene remembers contacts that were, and the order in which it saw them decides, in the last digits, what
        happens when several begin at once. In a new one, an episode depends on its seed and its actions alone.
        """
        scene, env = self.env.scene, self.env
        things = list(scene.sub_scenes[0].entities)
        for thing in things:
            scene.sub_scenes[0].remove_entity(thing)
        env._set_scene_config()
        scene.sub_scenes[0] = sapien.Scene([physx.PhysxCpuSystem()])
        for thing in things:
            scene.sub_scenes[0].add_entity(thing)
        scene.px = scene.sub_scenes[0].physx_system
        scene.px.timestep = 1.0 / env.sim_freq

    def _find_facts(self, config: ManiSkillEnvConfig) -> Facts:
        env = self.env
        own = common.flatten_state_dict(env._get_obs_agent(), use_torch=True, device=env.device)
        return Facts(
            state_size=self.states.shape[1],
            proprio_size=own.shape[1],
            action_size=env.single_action_space.shape[0],
            relative=_relative_entries(env.agent.controller, env.single_action_space.shape[0]),
            control_hz=env.control_freq,
            grasp=any(name in self._info for name in GRASPS),
            progress="normalized_dense" in env.SUPPORTED_REWARD_MODES,
            description=describe(config.task, type(env).__doc__),
        )


class Easel:
    """Draws snapshots on the CPU, with an environment that is never stepped: looking changes nothing."""

    def __init__(self, config: ManiSkillEnvConfig) -> None:
        self._config = config
        self._env = build(config, draws=True)
        self._seed: int | None = None

    def draw(self, snapshot: np.ndarray, seed: int, cameras: Sequence[str]) -> np.ndarray:
        """uint8[V,S,S,3] of one snapshot f32[k] from an episode of that seed."""
        if self._env.reconfiguration_freq and seed != self._seed:
            self._env.reset(seed=[seed], options={"reconfigure": True})
            self._seed = seed
        self._env.set_state(torch.as_tensor(snapshot)[None])
        return take_pictures(self._env, cameras, show_goal=self._config.show_goal)[0]


def take_pictures(env: Any, cameras: Sequence[str], *, show_goal: bool) -> np.ndarray:
    """uint8[n,V,S,S,3]: what the cameras of a task see."""
    for thing in env._hidden_objects:
        (thing.show_visual if show_goal else thing.hide_visual)()
    env.scene.update_render(update_sensors=True, update_human_render_cameras=False)
    pictures = []
    for name in cameras:
        sensor = env._sensors[name]
        sensor.capture()
        seen = sensor.get_obs(rgb=True, depth=False, position=False, segmentation=False)["rgb"]
        pictures.append(_numpy(seen)[..., :3])
    return np.stack(pictures, axis=1)


def _relative_entries(controller: Any, size: int) -> list[bool]:
    """Which entries of an action ask for a motion from where things are."""
    parts = getattr(controller, "controllers", {"": controller})
    places = getattr(controller, "action_mapping", {"": (0, size)})
    relative = np.zeros(size, bool)
    for name, (start, stop) in places.items():
        relative[start:stop] = bool(getattr(parts[name].config, "use_delta", False))
    return relative.tolist()


def _numpy(value: torch.Tensor) -> np.ndarray:
    return value.cpu().numpy()
