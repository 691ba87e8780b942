"""The Panda's scripted experts at the controls of a twin: as a policy, or as a hand on the SpaceMouse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from referee.envs.franka.env import FrankaVectorEnv
from referee.envs.franka.guard import shortened
from referee.envs.panda.experts import EXPERTS, GAIN, AimErrors
from referee.robots.spacemouse import Motion, ScriptedInput
from referee.robots.twin import Twin


class TwinExpert:
    """Acts in the environment of a twin, whose truth it knows; `noise` is what is added to its actions."""

    def __init__(self, env: FrankaVectorEnv, *, noise: float = 0.0, miss: float = 0.0, seed: int = 0) -> None:
        self._env, self._noise = env, noise
        self._aim = AimErrors(env.num_envs, miss, seed)
        self._expert = EXPERTS[env.stage.task.name]
        self._random = np.random.default_rng(seed)

    def __call__(self) -> np.ndarray:
        """The next actions f32[n,a]."""
        offsets = self._aim.offsets(self._env.elapsed)
        actions = np.stack([self._action(i, offsets[i]) for i in range(self._env.num_envs)]).astype(np.float32)
        if self._noise:
            actions += self._noise * self._random.standard_normal(actions.shape, dtype=np.float32)
        return np.clip(actions, -1.0, 1.0)

    def _action(self, i: int, offset: np.ndarray) -> np.ndarray:
        twin, rules = self._env.stations[i].arm, self._env.setup.rules
        assert isinstance(twin, Twin)
        world = self._env.stage.world(twin)
        world = replace(world, goal=world.goal + offset)
        target, gripper = self._expert(world)
        move = shortened(GAIN * (target[0] - world.tcp[0]) / self._env.config.max_step, 1.0)
        return np.concatenate([move, np.zeros(3 * rules.rotates), gripper[: int(rules.has_gripper)]])


def expert_hand(env: FrankaVectorEnv, *, noise: float = 0.0, seed: int = 0) -> ScriptedInput:
    """A SpaceMouse in the hand of the expert: always moved, its buttons pressed where the gripper is to change."""
    expert = TwinExpert(env, noise=noise, seed=seed)
    rules = env.setup.rules

    def motion() -> Motion:
        action = expert()[0].astype(np.float64)
        grip = action[-1] if rules.has_gripper else 0.0
        turn = action[3:6] if rules.rotates else np.zeros(3)
        return Motion(action[:3], turn, left=grip < -0.5, right=grip > 0.5, time=env.stations[0].clock.now())

    return ScriptedInput(motion)
