"""The tasks: how an episode starts, what a state shows, when it is a success and what it is worth."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np

from referee.envs.panda.world import World
from referee.errors import RefereeError
from referee.sim.batch import FINGER_OPEN, HOME
from referee.sim.scene import CUBE_HALF, PEG_GAP, PEG_HALF, PEG_LENGTH, SOCKET_HEIGHT, Scene
from referee.sim.streams import Stream

START_NOISE = 0.02
"""Spread of the arm's angles at the start, in radians."""


@dataclass(frozen=True)
class Start:
    """Initial states of n episodes."""

    arm: np.ndarray
    goal: np.ndarray
    cube: np.ndarray | None = None
    fingers: float = FINGER_OPEN


@dataclass(frozen=True)
class Task(ABC):
    """One thing to do. All functions are vectorised over environments and depend on the state alone.

    Success is decided by what one picture can show (positions, a grasp), never by velocities.
    """

    name: str
    description: str
    scene: Scene
    low: np.ndarray = field(default_factory=lambda: np.array([0.28, -0.26, 0.012]))
    high: np.ndarray = field(default_factory=lambda: np.array([0.70, 0.26, 0.42]))
    """The box that the fingertips never leave."""
    fingers: tuple[float, float] = (0.0, FINGER_OPEN)
    """Finger positions that the gripper action reaches, from −1 to +1."""

    @abstractmethod
    def start(self, stream: Stream) -> Start:
        """Initial states for every row of the stream."""

    @abstractmethod
    def success(self, world: World) -> np.ndarray:
        """bool[n]"""

    @abstractmethod
    def value(self, world: World) -> np.ndarray:
        """How good a state is, f64[n] in 0..1, without the bonus of success: the dense reward is made of it."""

    @abstractmethod
    def features(self, world: World) -> list[np.ndarray]:
        """What the state observation holds beyond the arm's own."""

    def grasp(self, world: World) -> np.ndarray | None:
        """bool[n], or None where nothing can be grasped."""
        return None

    def dense_reward(self, world: World, success: np.ndarray) -> np.ndarray:
        """f64[n] in 0..1: half for the way to the goal, all of it at success."""
        return np.where(success, 1.0, 0.5 * self.value(world))

    PROPRIO = 25

    def observe(self, world: World) -> np.ndarray:
        """The state observation f32[n,d]: joints 9, speeds 9, hand pose 7, then the task's features."""
        parts = [world.joints, world.speeds, world.tcp, world.hand_quat, *self.features(world)]
        return np.concatenate(parts, axis=1, dtype=np.float32)

    def _arm(self, stream: Stream) -> np.ndarray:
        return HOME + START_NOISE * (2 * stream.uniform(7) - 1)


def near(distance: np.ndarray, scale: float = 5.0) -> np.ndarray:
    """1 at distance 0, falling smoothly to 0."""
    return 1.0 - np.tanh(scale * distance)


def _length(vectors: np.ndarray) -> np.ndarray:
    return np.sqrt(np.einsum("ni,ni->n", vectors, vectors))


def _cube_poses(xy: np.ndarray, yaw: np.ndarray) -> np.ndarray:
    zero = np.zeros(len(xy))
    return np.stack([*xy.T, zero + CUBE_HALF, np.cos(yaw / 2), zero, zero, np.sin(yaw / 2)], axis=1)


class Reach(Task):
    """Bring the fingertips into the green ball."""

    def start(self, stream: Stream) -> Start:
        goal = stream.between([0.38, -0.15, 0.06], [0.58, 0.15, 0.24])
        return Start(self._arm(stream), goal)

    def success(self, world: World) -> np.ndarray:
        return _length(world.goal - world.tcp) < 0.02

    def value(self, world: World) -> np.ndarray:
        return near(_length(world.goal - world.tcp))

    def features(self, world: World) -> list[np.ndarray]:
        return [world.goal, world.goal - world.tcp]


class PushCube(Task):
    """Push the red cube until it stands on the green disc as a whole."""

    def start(self, stream: Stream) -> Start:
        arm = self._arm(stream)
        xy = stream.between([0.38, -0.10], [0.45, 0.10])
        yaw = (stream.uniform(1)[:, 0] - 0.5) * 0.4
        step = stream.between([0.11, -0.06], [0.17, 0.06])
        goal = np.concatenate([xy + step, np.full((len(xy), 1), 0.001)], axis=1)
        return Start(arm, goal, _cube_poses(xy, yaw), fingers=0.0)

    def success(self, world: World) -> np.ndarray:
        flat = world.cube[:, 2] < CUBE_HALF + 0.01
        return flat & (_length((world.goal - world.cube)[:, :2]) < 0.04)

    def value(self, world: World) -> np.ndarray:
        to_goal = (world.goal - world.cube)[:, :2]
        distance = _length(to_goal)
        direction = to_goal / np.maximum(distance, 1e-6)[:, None]
        behind = world.cube - np.pad(direction * (CUBE_HALF + 0.012), ((0, 0), (0, 1)))
        behind[:, 2] = CUBE_HALF
        return 0.4 * near(_length(behind - world.tcp)) + 0.6 * near(distance, 8.0)

    def features(self, world: World) -> list[np.ndarray]:
        return [world.goal, world.cube, world.cube_quat, world.cube - world.tcp, world.goal - world.cube]


class PickCube(Task):
    """Grasp the red cube and hold it in the green ball."""

    def start(self, stream: Stream) -> Start:
        arm = self._arm(stream)
        xy = stream.between([0.40, -0.12], [0.56, 0.12])
        yaw = (stream.uniform(1)[:, 0] - 0.5) * 0.4
        goal = stream.between([0.40, -0.12, 0.09], [0.56, 0.12, 0.24])
        return Start(arm, goal, _cube_poses(xy, yaw))

    def grasp(self, world: World) -> np.ndarray:
        return world.grasping

    def success(self, world: World) -> np.ndarray:
        return (_length(world.goal - world.cube) < 0.025) & world.grasping

    def value(self, world: World) -> np.ndarray:
        held = world.grasping
        reach = near(_length(world.cube - world.tcp))
        place = near(_length(world.goal - world.cube))
        return (reach + held * (1.0 + 2.0 * place)) / 4.0

    def features(self, world: World) -> list[np.ndarray]:
        return [
            world.grasping[:, None],
            world.goal,
            world.cube,
            world.cube_quat,
            world.cube - world.tcp,
            world.goal - world.cube,
        ]


class PegInsertion(Task):
    """Put the peg in the hand 3 cm deep into the hole with the green rim."""

    DEPTH = 0.03

    def start(self, stream: Stream) -> Start:
        arm = self._arm(stream)
        xy = stream.between([0.42, -0.08], [0.54, 0.08])
        goal = np.concatenate([xy, np.zeros((len(xy), 1))], axis=1)
        return Start(arm, goal, fingers=PEG_HALF)

    def tip_to_hole(self, world: World) -> np.ndarray:
        """f64[n,3]: from the peg's tip to the middle of the hole at full depth."""
        tip = world.tcp + PEG_LENGTH * world.hand[:, :, 2]
        bottom = world.goal + np.array([0.0, 0.0, SOCKET_HEIGHT - self.DEPTH])
        return bottom - tip

    def success(self, world: World) -> np.ndarray:
        left = self.tip_to_hole(world)
        return (left[:, 2] > 0.0) & (_length(left[:, :2]) < PEG_GAP * 1.5)

    def value(self, world: World) -> np.ndarray:
        left = self.tip_to_hole(world)
        aside, above = _length(left[:, :2]), np.maximum(-left[:, 2], 0.0)
        # Depth pays only over the hole, and softly so: a hard gate hides the way in.
        over = near(aside, 60.0)
        return 0.3 * near(aside) + 0.2 * over + 0.5 * over * near(above, 12.0)

    def features(self, world: World) -> list[np.ndarray]:
        return [world.goal, self.tip_to_hole(world)]


TASKS: dict[str, Task] = {
    "Reach": Reach("Reach", "Move the gripper into the green ball.", Scene(goal="ball", goal_radius=0.032)),
    "PushCube": PushCube(
        "PushCube",
        "Push the red cube onto the green disc.",
        Scene(cube=True, goal="disc", goal_radius=0.07),
    ),
    "PickCube": PickCube(
        "PickCube",
        "Pick up the red cube and hold it in the green ball.",
        Scene(cube=True, goal="ball", goal_radius=0.045),
    ),
    "PegInsertion": PegInsertion(
        "PegInsertion",
        "Insert the orange peg into the hole with the green rim.",
        Scene(peg=True, goal="socket"),
        low=np.array([0.28, -0.26, PEG_LENGTH + 0.002]),
        fingers=(PEG_HALF, PEG_HALF),
    ),
}


def task_named(name: str) -> Task:
    """The task called `name`."""
    if name not in TASKS:
        raise RefereeError(f"unknown task {name!r}: choose one of {', '.join(TASKS)}")
    return TASKS[name]
