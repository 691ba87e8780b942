"""Scripted experts of ManiSkill's cube tasks: the moves of the embedded Panda's, from ManiSkill's states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from referee.envs.maniskill.env import ManiSkillVectorEnv
from referee.envs.panda.experts import AimErrors, Move, Table, pick_cube, push_cube
from referee.errors import RefereeError

REACH = 0.1
"""Metres that an action of 1 asks the hand to go, with `action_scale` 1."""
HAND_MODES = ("pd_ee_delta_pos", "pd_ee_delta_pose")


@dataclass(frozen=True)
class Seen:
    """A `Table`, read from states."""

    tcp: np.ndarray
    cube: np.ndarray
    goal: np.ndarray
    grasping: np.ndarray

    @classmethod
    def pick(cls, states: np.ndarray, own: int) -> Seen:
        """Of PickCube: is_grasped, tcp_pose 7, goal_pos 3 and obj_pose 7 after what the robot feels of itself."""
        tcp, goal, cube = (states[:, own + i : own + i + 3].astype(np.float64) for i in (1, 8, 11))
        return cls(tcp, cube, goal, states[:, own] > 0.5)

    @classmethod
    def push(cls, states: np.ndarray, own: int) -> Seen:
        """Of PushCube: tcp_pose 7, goal_pos 3, obj_pose 7."""
        tcp, goal, cube = (states[:, own + i : own + i + 3].astype(np.float64) for i in (0, 7, 10))
        return cls(tcp, cube, goal, np.zeros(len(states), bool))


EXPERTS: dict[str, tuple[Callable[[np.ndarray, int], Seen], Callable[[Table], Move]]] = {
    "PickCube-v1": (Seen.pick, pick_cube),
    "PushCube-v1": (Seen.push, push_cube),
}


class ManiSkillExpert:
    """Acts in an env whose actions move the hand; `noise` is the standard deviation of what is added to its actions."""

    def __init__(self, env: ManiSkillVectorEnv, *, noise: float = 0.0, miss: float = 0.0, seed: int = 0) -> None:
        task, mode = env.config.task, env.config.control_mode
        if task not in EXPERTS:
            raise RefereeError(f"of ManiSkill's tasks, {', '.join(EXPERTS)} have a scripted expert, {task} has none")
        if mode not in HAND_MODES:
            raise RefereeError(
                f"the scripted expert moves the hand, but env.*.control_mode is {mode}: set it to {HAND_MODES[0]}"
            )
        self._env, self._noise = env, noise
        self._reach = REACH * env.config.action_scale
        self._see, self._move = EXPERTS[task]
        self._aim = AimErrors(env.num_envs, miss, seed)
        self._random = np.random.default_rng(seed)

    def __call__(self) -> np.ndarray:
        """The next actions f32[n,a]."""
        env = self._env
        table = self._see(env.true_states(), env.proprio_size)
        table = replace(table, goal=self._aim.displaced(table.goal, env.elapsed))
        target, gripper = self._move(table)
        (size,) = env.single_action_space.shape  # type: ignore[misc]
        actions = np.zeros((env.num_envs, size), np.float32)  # where the hand can turn, it does not
        actions[:, :3] = np.clip((target - table.tcp) / self._reach, -1.0, 1.0)
        actions[:, -1] = gripper
        if self._noise:
            actions += self._noise * self._random.standard_normal(actions.shape, dtype=np.float32)
            np.clip(actions, -1.0, 1.0, out=actions)
        return actions
