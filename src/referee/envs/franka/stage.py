"""The table of a twin: who puts things in place between episodes, and what is true there.

On a real arm a person does the first, and nobody knows the second.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from referee.envs.panda.tasks import task_named
from referee.envs.panda.world import World
from referee.robots.poses import Pose
from referee.robots.twin import Twin
from referee.sim.streams import Stream


class Stage:
    """One of the Panda's tasks, played by a twin."""

    def __init__(self, scene: str, target: Pose | None) -> None:
        self.task = task_named(scene)
        self._target = target

    def arrange(self, twin: Twin, stream: Stream) -> None:
        """Set the table for the next episode; the goal is where the target pose is, if there is one."""
        start = self.task.start(stream)
        goal = start.goal[0]
        if self._target is not None:
            goal = self._target.position.copy()
            if self.task.scene.goal != "ball":
                goal[2] = start.goal[0, 2]
        twin.arrange(goal, None if start.cube is None else start.cube[0])

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
