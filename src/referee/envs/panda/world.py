"""What the tasks see of the simulation: named arrays, one row per environment."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from referee.sim.batch import ARM, CUBE, FINGERS, PandaBatch
from referee.sim.scene import CUBE_HALF


@dataclass(frozen=True)
class World:
    """States of n environments: positions in metres, in the frame of the arm's base."""

    joints: np.ndarray
    """f64[n,9]: seven arm angles and two finger positions."""
    speeds: np.ndarray
    """f64[n,9]: their velocities."""
    tcp: np.ndarray
    """f64[n,3]: the point between the fingertips."""
    hand: np.ndarray
    """f64[n,3,3]: the hand's orientation."""
    hand_quat: np.ndarray
    """f64[n,4]"""
    cube: np.ndarray
    """f64[n,3]: the cube's centre (zeros where there is none)."""
    cube_quat: np.ndarray
    """f64[n,4]"""
    cube_axes: np.ndarray
    """f64[n,3,3]: the cube's orientation."""
    goal: np.ndarray
    """f64[n,3]"""

    @classmethod
    def of(cls, sim: PandaBatch, goal: np.ndarray, ids: np.ndarray | slice = slice(None)) -> World:
        """The present states of the environments `ids`, as copies; of all, as views that live until the next step."""
        qpos = sim.qpos[ids]
        has_cube = qpos.shape[1] > CUBE.start
        cube = qpos[:, CUBE] if has_cube else np.zeros((len(qpos), 7))
        return cls(
            joints=qpos[:, ARM.start : FINGERS.stop],
            speeds=sim.qvel[ids, ARM.start : FINGERS.stop],
            tcp=sim.tcp[ids],
            hand=sim.hand[ids],
            hand_quat=sim.hand_quat[ids],
            cube=cube[:, :3],
            cube_quat=cube[:, 3:],
            cube_axes=sim.cube[ids] if has_cube else np.zeros((len(qpos), 3, 3)),
            goal=goal[ids],
        )

    @property
    def finger_gap(self) -> np.ndarray:
        """f64[n]: distance between the finger pads."""
        return self.joints[:, 7] + self.joints[:, 8]

    def cube_in_hand(self) -> np.ndarray:
        """The cube's centre as seen from the fingertips, f64[n,3] in the hand's axes (y: where the fingers open)."""
        return np.einsum("nij,ni->nj", self.hand, self.cube - self.tcp)

    @cached_property
    def grasping(self) -> np.ndarray:
        """bool[n]: the pads lie on two sides of the cube. Positions alone decide, as they do in a picture."""
        x, y, z = np.abs(self.cube_in_hand()).T
        between = (x < 0.018) & (y < 0.012) & (z < 0.022)
        # The cube's extent along the fingers' line is larger when it stands askew between them.
        axes = np.abs(np.einsum("nij,ni->nj", self.cube_axes, self.hand[:, :, 1]))
        extent = 2 * CUBE_HALF * axes.sum(axis=1)
        return between & (self.finger_gap < extent + 0.002) & (self.finger_gap > 1.6 * CUBE_HALF)
