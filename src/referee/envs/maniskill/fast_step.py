"""A control step of ManiSkill on the CPU that skips repeated work; every bit of its results is ManiSkill's.

ManiSkill's `step` is made for batches on a GPU: for one environment on a CPU, most of its time is Python around PhysX.
The order of events is the same here, and the task's `evaluate`, observations and rewards are ManiSkill's own code.
Four things differ underneath:

- Joint targets come from the same float32 operations in the same order, in numpy (`joint_targets`), and so does the
  arithmetic of poses (`poses`).
- Nothing moves after the last simulation step, so each pose and each contact is read once (`ReadCache`).
- One finger that presses too little is no grasp, so the angles and the other finger are not looked at (`is_grasping`).
- torch runs in inference mode, which changes bookkeeping and no number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from mani_skill.utils import common, sapien_utils
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
        _stop_at_loose_fingers(env.agent, env.scene)

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
    """Go through the contacts once for all pairs of bodies."""

    def contacts() -> dict[tuple[Any, Any], list[tuple[Any, bool]]]:
        """By pair of entities, whichever is first; the flag tells whether it is the first one of the contact."""
        result: dict[tuple[Any, Any], list[tuple[Any, bool]]] = defaultdict(list)
        for contact in scene.px.get_contacts():
            first, second = (body.entity for body in contact.bodies)
            result[first, second].append((contact, True))
            result[second, first].append((contact, False))
        return result

    def impulses(a: Any, b: Any) -> torch.Tensor:
        pair = a._bodies[0].entity, b._bodies[0].entity
        shared = cache.read("contacts", contacts).get(pair, [])
        return common.to_tensor(sapien_utils.compute_total_impulse(shared))[None]

    scene.get_pairwise_contact_impulses = impulses


def _stop_at_loose_fingers(agent: Any, scene: Any) -> None:
    """Let `is_grasping` return at the first finger that presses too little or at too wide an angle."""

    def is_grasping(object: Any, min_force: float = 0.5, max_angle: float = 85) -> torch.Tensor:
        for finger in (agent.finger1_link, agent.finger2_link):
            force = scene.get_pairwise_contact_forces(finger, object)
            if not torch.linalg.norm(force, axis=1) >= min_force:
                return torch.zeros(1, dtype=torch.bool)
            axis = finger.pose.to_transformation_matrix()[..., :3, 1]
            opening = axis if finger is agent.finger1_link else -axis
            if not torch.rad2deg(common.compute_angle_between(opening, force)) <= max_angle:
                return torch.zeros(1, dtype=torch.bool)
        return torch.ones(1, dtype=torch.bool)

    agent.is_grasping = is_grasping
