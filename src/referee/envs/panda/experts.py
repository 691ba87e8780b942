"""Scripted experts: from the true state to a step of the hand, without memory, so they recover from any noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from referee.envs.panda.env import PandaVectorEnv
from referee.envs.panda.tasks import PegInsertion
from referee.envs.panda.world import World
from referee.sim.scene import CUBE_HALF, PEG_LENGTH, SOCKET_HEIGHT

GAIN = 1.1
"""How much of the remaining way is asked for at each step; the arm lags, so more than all of it is stable."""
OPEN, CLOSED = 1.0, -1.0

Move = tuple[np.ndarray, np.ndarray]
"""Where the fingertips should go (f64[n,3]) and what the gripper should do (f64[n])."""


class Table(Protocol):
    """What one must see to move a cube, whoever simulates it: positions f64[n,3], and whether the hand holds it."""

    @property
    def tcp(self) -> np.ndarray: ...
    @property
    def cube(self) -> np.ndarray: ...
    @property
    def goal(self) -> np.ndarray: ...
    @property
    def grasping(self) -> np.ndarray: ...


def reach(world: World) -> Move:
    """Straight to the ball."""
    return world.goal, np.full(len(world.tcp), OPEN)


def push_cube(world: Table) -> Move:
    """Behind the cube at a height that clears it, down, and along the line to the goal."""
    to_goal = (world.goal - world.cube)[:, :2]
    distance = np.linalg.norm(to_goal, axis=1, keepdims=True)
    direction = to_goal / np.maximum(distance, 1e-6)
    from_cube = (world.tcp - world.cube)[:, :2]
    along = np.einsum("ni,ni->n", from_cube, direction)
    aside = from_cube - along[:, None] * direction
    off_line = np.linalg.norm(aside, axis=1)

    ready = (along < -0.028) & (off_line < 0.014)
    low = world.tcp[:, 2] < 2 * CUBE_HALF
    behind = world.cube[:, :2] - 0.065 * direction
    # Past the fingers' own thickness, slower towards the goal, and against the drift from the line.
    through = world.tcp[:, :2] + np.clip(distance - 0.012, 0.008, 0.03) * direction - 1.5 * aside
    pushing = ready & low
    descending = ~pushing & (np.linalg.norm(world.tcp[:, :2] - behind, axis=1) < 0.02)
    rising = ~pushing & ~descending & (world.tcp[:, 2] < 3.2 * CUBE_HALF)

    target = np.empty_like(world.tcp)
    target[:, :2] = np.where(pushing[:, None], through, np.where(rising[:, None], world.tcp[:, :2], behind))
    target[:, 2] = np.where(pushing | descending, CUBE_HALF, 4.5 * CUBE_HALF)
    rest = distance[:, 0] < 0.03
    target[rest] = world.tcp[rest]
    return target, np.full(len(world.tcp), CLOSED)


def pick_cube(world: Table) -> Move:
    """Over the cube, down, close, and carry it to the goal."""
    held = world.grasping
    aside = np.linalg.norm((world.cube - world.tcp)[:, :2], axis=1)
    height = np.abs(world.tcp[:, 2] - world.cube[:, 2])
    closing = (aside < 0.010) & (height < 0.012)
    above = aside > 0.012 + 0.3 * np.maximum(world.tcp[:, 2] - world.cube[:, 2], 0.0)

    target = world.cube.copy()
    target[above, 2] = world.cube[above, 2] + 3.5 * CUBE_HALF
    target[held] = (world.tcp + world.goal - world.cube)[held]
    return target, np.where(held | closing, CLOSED, OPEN)


def insert_peg(world: World) -> Move:
    """Over the hole, and down as far as the peg's tip stays over it, gently where it could hit the rim."""
    tip = world.tcp + PEG_LENGTH * world.hand[:, :, 2]
    aside = np.linalg.norm((world.goal - tip)[:, :2], axis=1)
    rim = world.goal[:, 2] + SOCKET_HEIGHT
    inside = tip[:, 2] < rim - 0.002
    over = (aside < 0.0018) | (inside & (aside < 0.004))
    bottom = rim - PegInsertion.DEPTH - 0.008
    down = np.maximum(bottom, tip[:, 2] - 0.010)
    target = world.tcp + world.goal - tip
    target[:, 2] = world.tcp[:, 2] - tip[:, 2] + np.where(over, down, rim + 0.008)
    return target, np.full(len(world.tcp), CLOSED)


EXPERTS: dict[str, Callable[[World], Move]] = {
    "Reach": reach,
    "PushCube": push_cube,
    "PickCube": pick_cube,
    "PegInsertion": insert_peg,
}


class AimErrors:
    """Every second episode aims beside the goal, by up to `distance` metres.

    Near misses are what a reward model must tell from successes, and noise alone makes few of them.
    """

    def __init__(self, num_envs: int, distance: float, seed: int) -> None:
        self._distance = distance
        self._offsets = np.zeros((num_envs, 3))
        self._random = np.random.default_rng([seed, 1])

    def offsets(self, elapsed: np.ndarray) -> np.ndarray:
        """f64[n,3]: how far each present episode aims beside its goal; drawn when an episode begins."""
        if self._distance:
            for i in np.flatnonzero(elapsed == 0):
                direction = self._random.standard_normal(3)
                length = self._distance * self._random.uniform() * (self._random.uniform() < 0.5)
                self._offsets[i] = length * direction / np.linalg.norm(direction)
        return self._offsets

    def displaced(self, goal: np.ndarray, elapsed: np.ndarray) -> np.ndarray:
        """The goals f64[n,3] that are aimed at, none of them inside the table."""
        if not self._distance:
            return goal
        aim = goal + self.offsets(elapsed)
        aim[:, 2] = np.maximum(aim[:, 2], np.minimum(goal[:, 2], CUBE_HALF))
        return aim


class Expert:
    """Acts in a Panda env; `noise` is the standard deviation of what is added to its actions (0: none)."""

    def __init__(self, env: PandaVectorEnv, *, noise: float = 0.0, miss: float = 0.0, seed: int = 0) -> None:
        self._env = env
        self._aim = AimErrors(env.num_envs, miss, seed)
        self._move = EXPERTS[env.task.name]
        self._noise = noise
        self._random = np.random.default_rng(seed)

    def __call__(self) -> np.ndarray:
        """The next actions f32[n,a]."""
        world = self._env.world()
        world = replace(world, goal=self._aim.displaced(world.goal, self._env.elapsed))
        target, gripper = self._move(world)
        actions = self._env.hand_actions(GAIN * (target - world.tcp), gripper)
        if self._noise:
            actions += self._noise * self._random.standard_normal(actions.shape, dtype=np.float32)
            np.clip(actions, -1.0, 1.0, out=actions)
        return actions
