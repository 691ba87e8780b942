"""Many Pandas stepped at once in C, on all cores, with the hand and the gripper as the controls."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from referee.sim.engine import LazyMujoco
from referee.sim.kinematics import POSTURE_PULL, hand_jacobian, joint_step, rotation_error
from referee.sim.scene import CUBE_MASS, GRAVITY, SUBSTEPS, Scene, physics_xml

ARM = slice(0, 7)
FINGERS = slice(7, 9)
CUBE = slice(9, 16)
FINGER_OPEN = 0.04

HOME = np.array([0.0, -0.0066, 0.0, -2.4436, 0.0, 2.4370, np.pi / 4])
"""Joint angles with the hand pointing down, 20 cm over the middle of the workspace."""
DOWN = np.diag([1.0, -1.0, -1.0])
"""The hand's orientation: fingers down, opening along the world's y axis."""

if TYPE_CHECKING:
    import mujoco
else:
    mujoco = LazyMujoco()


@cache
def _quiet() -> None:
    """By default MuJoCo writes its warnings into a file in the working directory."""
    mujoco.set_mju_user_warning(logging.getLogger(__name__).warning)


@dataclass(frozen=True)
class SimState:
    """Everything that the future of a `PandaBatch` depends on, as copies."""

    rows: np.ndarray


class PandaBatch:
    """`num_envs` independent Pandas in one scene, as arrays.

    Positions are in metres and joint angles in radians, in the frame of the arm's base on the table top. The
    arrays are live views of the simulation, float64, one row per environment.
    """

    def __init__(self, scene: Scene, num_envs: int, *, num_threads: int = 0) -> None:
        _quiet()
        self.model = mujoco.MjModel.from_xml_string(physics_xml(scene))
        self._no_stage, self._velocity_stage = (
            mujoco.mjtStage.mjSTAGE_NONE.value, mujoco.mjtStage.mjSTAGE_VEL.value,
        )  # fmt: skip
        warning = mujoco.mjtWarning
        self._blown_up = [warning.mjWARN_BADQPOS.value, warning.mjWARN_BADQVEL.value, warning.mjWARN_BADQACC.value]
        # One MjData per environment: what was computed after a step is used by the next one.
        batch: Any = import_module("mujoco.batch")
        self._batch = batch.Batch(self.model, num_envs, num_threads or os.cpu_count() or 1, persistent=True)
        self._batch.reset()
        self.num_envs = num_envs
        self.qpos = self._batch.bind("qpos")
        self.qvel = self._batch.bind("qvel")
        self._ctrl = self._batch.bind("ctrl")
        self._axes = self._batch.bind("xaxis")
        self._anchors = self._batch.bind("xanchor")
        self._site_pos = self._batch.bind("site_xpos")
        self._site_mat = self._batch.bind("site_xmat")
        self._quats = self._batch.bind("xquat")
        self._hand_body = self.model.body("hand").id
        self._matrices = self._batch.bind("xmat")
        self._pull = self._batch.bind("xfrc_applied")
        self._cube_body = self.model.body("cube").id if scene.cube else None
        self._mocap_pos = self._batch.bind("mocap_pos") if self.model.nmocap else None
        limits = self.model.jnt_range[ARM]
        self._low, self._high = limits[:, 0] + 0.01, limits[:, 1] - 0.01
        self.place(np.arange(num_envs), np.tile(HOME, (num_envs, 1)))

    @property
    def tcp(self) -> np.ndarray:
        """Where the fingertips meet, f64[N,3]."""
        return self._site_pos[:, 0]

    @property
    def hand(self) -> np.ndarray:
        """Orientation of the hand, f64[N,3,3]."""
        return self._site_mat[:, 0].reshape(-1, 3, 3)

    @property
    def hand_quat(self) -> np.ndarray:
        """The same as a quaternion, f64[N,4]."""
        return self._quats[:, self._hand_body]

    @property
    def cube(self) -> np.ndarray:
        """Orientation of the cube, f64[N,3,3]; call it only where there is one."""
        return self._matrices[:, self._cube_body].reshape(-1, 3, 3)

    def place(
        self,
        ids: np.ndarray,
        arm: np.ndarray,
        *,
        fingers: float = FINGER_OPEN,
        cube: np.ndarray | None = None,
        socket: np.ndarray | None = None,
    ) -> None:
        """Put the environments `ids` at rest: arm angles f64[n,7], cube pose f64[n,7], socket position f64[n,3]."""
        self._batch.reset(ids, stage=self._no_stage)
        self.qpos[ids, ARM] = arm
        self.qpos[ids, FINGERS] = fingers
        if cube is not None:
            self.qpos[ids, CUBE] = cube
        if self._cube_body is not None:
            self._pull[ids, self._cube_body, 2] = -GRAVITY * CUBE_MASS
        if socket is not None and self._mocap_pos is not None:
            self._mocap_pos[ids, 0] = socket
        self._ctrl[ids, ARM] = arm
        self._ctrl[ids, FINGERS] = fingers
        self._batch.forward(ids, stage=self._velocity_stage)

    def hand_target(
        self,
        step: np.ndarray,
        low: np.ndarray,
        high: np.ndarray,
        rotation: np.ndarray = DOWN,
        posture_pull: float = POSTURE_PULL,
    ) -> np.ndarray:
        """Arm angles f64[N,7] that move the fingertips by `step` f64[N,3] within the box.

        rotation: how the hand is to be turned, f64[3,3] or [N,3,3]; pointing down, if not given.
        posture_pull: towards the home posture; without it, the hand arrives exactly.
        """
        arm = self.qpos[:, ARM]
        inside = np.clip(self.tcp + step, low, high) - self.tcp
        hand_step = np.concatenate([inside, rotation_error(self.hand, rotation)], axis=1)
        jacobian = hand_jacobian(self._axes[:, ARM], self._anchors[:, ARM], self.tcp)
        return arm + joint_step(jacobian, hand_step, posture_pull * (HOME - arm))

    def step(self, arm: np.ndarray, fingers: np.ndarray, *, substeps: int = SUBSTEPS) -> np.ndarray:
        """Drive to arm angles f64[N,7] and finger positions f64[N] for one control step, of so many substeps.

        Returns bool[N]: which environments became unstable and stand still at their last good state.
        """
        before = self._batch.state.copy()
        self._ctrl[:, ARM] = np.clip(arm, self._low, self._high)
        self._ctrl[:, FINGERS] = fingers[:, None]
        self._batch.step(nstep=substeps, stage=self._velocity_stage)
        # MuJoCo resets a simulation that blows up and counts that as a warning.
        unstable = self._batch.warning[:, self._blown_up, 1].any(axis=1)
        if unstable.any():
            ids = np.flatnonzero(unstable)
            self._batch.reset(ids, stage=self._no_stage)
            self._batch.state[ids] = before[ids]
            self.qvel[ids] = 0.0
            self._batch.forward(ids, stage=self._velocity_stage)
        return unstable

    def save(self) -> SimState:
        """A copy of all states, from which `restore` goes on bit by bit."""
        return SimState(rows=self._batch.state.copy())

    def restore(self, state: SimState) -> None:
        """Go back to a saved state."""
        self._batch.state[:] = state.rows
        self._batch.forward(None, stage=self._velocity_stage)
