"""A control step of ManiSkill on the CPU that skips repeated work; every bit of its results is ManiSkill's.

ManiSkill's `step` is made for batches on a GPU: for one environment on a CPU, most of its time is Python around PhysX.
The order of events is the same here, and `evaluate`, observations and rewards are ManiSkill's own code.
Four things differ:

- Joint targets come from the same float32 operations in the same order, in numpy (`joint_targets`), and so does the
  arithmetic of poses (`poses`).
- Nothing moves after the last simulation step, so each pose and each contact is read once (`ReadCache`).
- A finger that presses less than the minimum force does not grasp at any angle, so its angle is not computed.
- torch runs in inference mode, which changes bookkeeping and no number.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from mani_skill.utils.structs import Actor, Link

from referee.envs.maniskill.joint_targets import find_target_setter
from referee.envs.maniskill.poses import SinglePose

TASKS = frozenset(
    ("PickCube-v1", "PushCube-v1", "PullCube-v1", "StackCube-v1", "PegInsertionSide-v1", "PlugCharger-v1")
)
"""Tasks that the tests compare with ManiSkill's own step, which the others take: they may move things in `evaluate`."""
VERSION = "3.0.1"
"""The version of ManiSkill that was compared; any other takes its own step."""


def is_supported(task: str) -> bool:
    """Whether `FastStep` is known to equal this task's own step."""
    return task in TASKS and version("mani_skill") == VERSION


class ReadCache:
    """Keeps what was read while it is open (`with cache:`). Open it only while nothing can move."""

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] | None = None

    def __enter__(self) -> None:
        self._values = {}

    def __exit__(self, *error: object) -> None:
        self._values = None

    def read(self, key: Hashable, fresh: Callable[[], Any]) -> Any:
        """`fresh()`, or its earlier result since the cache was opened."""
        if self._values is None:
            return fresh()
        if key not in self._values:
            self._values[key] = fresh()
        return self._values[key]


class FastStep:
    """Steps one environment in its present scene. A task that rebuilds its scene needs a new one for each."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.set_targets = find_target_setter(env.agent)
        """None: the control mode is not known here, and ManiSkill applies the action."""
        self._cache = ReadCache()
        actors = (*env.scene.actors.values(), *env.scene.state_dict_registry.actors.values())  # merged actors, too
        for body in (*actors, *env.agent.robot.links):
            if len(body._objs) == 1:
                body.__class__ = _CACHED.get(type(body), type(body))
                body.read_cache = self._cache
        _cache_contacts(env.scene, self._cache)
        _check_forces_first(env.agent, env.scene)

    def step(self, actions: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
        """`env.step` of one action f32[1,a]: the state, the reward and the info."""
        env, action = self._env, torch.as_tensor(actions)
        if self.set_targets is None:
            env._step_action(action)
        else:
            self.set_targets(actions[0])
            for _ in range(env._sim_steps_per_control):
                env.scene.step()
        env._elapsed_steps += 1
        with self._cache, torch.inference_mode():
            info = env.get_info()
            observation = env.get_obs(info, unflattened=True)
            reward = env.get_reward(obs=observation, action=action, info=info)
            return env._flatten_raw_obs(observation), reward, info


def _with_cached_pose(kind: Any, sapien_pose: Callable[[Any], Any]) -> type:
    """A class of ManiSkill's with a pose that goes through the cache. sapien_pose: reads it off SAPIEN's object."""

    def pose(self: Any) -> SinglePose:
        result: SinglePose = self.read_cache.read(id(self), lambda: SinglePose.of(sapien_pose(self._objs[0])))
        return result

    return type(kind.__name__, (kind,), {"pose": property(pose, kind.pose.fset)})


_CACHED = {
    Actor: _with_cached_pose(Actor, lambda entity: entity.pose),
    Link: _with_cached_pose(Link, lambda link: link.entity_pose),
}


def _cache_contacts(scene: Any, cache: ReadCache) -> None:
    original = type(scene).get_pairwise_contact_impulses
    scene.get_pairwise_contact_impulses = lambda a, b: cache.read((id(a), id(b)), lambda: original(scene, a, b))


def _check_forces_first(agent: Any, scene: Any) -> None:
    """Let `is_grasping` return as soon as one finger presses less than it must."""
    original = type(agent).is_grasping

    def is_grasping(object: Any, min_force: float = 0.5, max_angle: float = 85) -> torch.Tensor:
        for finger in (agent.finger1_link, agent.finger2_link):
            force = torch.linalg.norm(scene.get_pairwise_contact_forces(finger, object), axis=1)
            if not force >= min_force:
                return torch.zeros(1, dtype=torch.bool)
        result: torch.Tensor = original(agent, object, min_force, max_angle)
        return result

    agent.is_grasping = is_grasping
