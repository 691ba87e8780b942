"""The table of a twin: who puts things in place between episodes, and what is true there.

On a real arm a person does the first, and nobody knows the second.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from referee.envs.panda.tasks import PegInsertion, task_named
from referee.envs.panda.world import World
from referee.robots.poses import Pose
from referee.robots.twin import Twin
from referee.sim.scene import PEG_LENGTH, SOCKET_HEIGHT
from referee.sim.streams import Stream

DEEPER = 0.001
"""Metres by which the highest hand that counts as there has the peg deeper in the hole than the task asks."""


class Stage:
    """One of the Panda's tasks, played by a twin."""

    def __init__(self, scene: str, target: Pose | None, tolerance: float) -> None:
        """target: the pose where the task is done, if one is known; tolerance: metres from it that count as there."""
        self.task = task_named(scene)
        self._target, self._tolerance = target, tolerance

    def arrange(self, twin: Twin, stream: Stream) -> None:
        """Set the table for the next episode; the goal is where the target pose is, if there is one."""
        start = self.task.start(stream)
        goal = start.goal[0] if self._target is None else self._goal(self._target.position, start.goal[0])
        twin.arrange(goal, None if start.cube is None else start.cube[0])

    def _goal(self, target: np.ndarray, usual: np.ndarray) -> np.ndarray:
        """Where the goal stands so that a hand at the target has done the task, wherever within the tolerance it is."""
        if self.task.scene.goal == "ball":
            return target.copy()
        height = usual[2]
        if isinstance(self.task, PegInsertion):
            height = target[2] + self._tolerance + DEEPER - (PEG_LENGTH + SOCKET_HEIGHT - self.task.DEPTH)
        return np.array([target[0], target[1], height])

    def world(self, twin: Twin) -> World:
        """The true state, for experts and for the truth."""
        return World.of(twin.sim, twin.goal, np.array([0]))

    def truth(self, twin: Twin, *, progress: bool) -> dict[str, Any]:
        """Whether the task is done, whether something is grasped, and how far it is, where that means something."""
        world = self.world(twin)
        found: dict[str, Any] = {"success": bool(self.task.success(world)[0])}
        grasp = self.task.grasp(world)
        if grasp is not None:
            found["grasp"] = bool(grasp[0])
        if progress:
            found["progress"] = 1.0 if found["success"] else float(self.task.value(world)[0])
        return found
