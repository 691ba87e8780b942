"""A Franka Emika Panda or FR3 through franky-control: a thin layer between its interface and ours.

The hand is tracked by an impedance controller (a spring towards the target) that runs in franky's own real-time thread:
if this process is slow or dies, the arm stands at its last target, or stops.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from referee.errors import MissingDependency
from referee.robots.arm import ArmError, ArmState
from referee.robots.clock import Clock
from referee.robots.poses import Pose, rotation_from_quaternion

INSTALL = 'pip install "referee-rl[franka]" (franky-control; it must match the version of your robot\'s system image)'
FASTEST = 1.7
"""Metres per second that a Franka's hand is allowed at most; speeds are shares of it."""
GENTLE = 0.1
"""Share of the fastest acceleration and jerk on the way to a new episode."""
GRIPPER_SPEED, GRIPPER_FORCE = 0.1, 20.0
WIDEST = 0.08
"""Metres: any width up to this counts as a grasp, since what is held may have any size."""


def franky() -> Any:
    """The module, or one line that says how to install it."""
    try:
        import franky
    except (ImportError, OSError) as error:
        raise MissingDependency(f"franky-control cannot be imported ({error}): {INSTALL}") from error
    return franky


class Franky:
    """An `Arm`. All that franky raises becomes an ArmError that says what to do."""

    def __init__(self, robot_ip: str, clock: Clock, *, stiffness: float = 500.0, has_gripper: bool = True) -> None:
        self._ip, self._clock, self._stiffness = robot_ip, clock, stiffness
        self._has_gripper = has_gripper
        self._franky = franky()
        self._robot: Any = None
        self._hand: Any = None
        self._tracker: Any = None
        self._gripping: Any = None

    def connect(self) -> None:
        """See Arm."""
        if self._robot is None:
            with _Said(self._franky, f"the arm at {self._ip} cannot be reached"):
                self._robot = self._franky.Robot(self._ip)
                self._hand = self._franky.Gripper(self._ip) if self._has_gripper else None

    def state(self) -> ArmState:
        """See Arm."""
        with _Said(self._franky, "the arm does not tell its state"):
            robot = self._reached()
            measured = self._clock.now()
            state = robot.state
            width = float(self._hand.width) if self._hand is not None else 0.0
        return ArmState(
            measured,
            _pose(state.O_T_EE),
            np.array(state.q, np.float64),
            np.array(state.dq, np.float64),
            width,
        )

    def move(self, target: Pose) -> None:
        """See Arm."""
        with _Said(self._franky, "the arm does not move"):
            robot = self._reached()
            if robot.has_errors:
                raise ArmError("the arm refuses commands after an error (a collision, or the user stop): recover it")
            if self._tracker is None or not self._tracker.is_running:
                self._tracker = self._franky.CartesianImpedanceTracker(robot, translational_stiffness=self._stiffness)
            self._tracker.set_target(self._affine(target))

    def move_to(self, target: Pose, *, speed: float) -> None:
        """See Arm."""
        with _Said(self._franky, "the arm does not arrive"):
            self._end_tracking()
            share = min(1.0, speed / FASTEST)
            dynamics = self._franky.RelativeDynamicsFactor(velocity=share, acceleration=GENTLE, jerk=GENTLE)
            motion = self._franky.CartesianMotion(
                self._affine(target), self._franky.ReferenceType.Absolute, relative_dynamics_factor=dynamics
            )
            self._reached().move(motion)

    def gripper(self, *, opened: bool) -> None:
        """See Arm; the fingers move while the arm goes on."""
        if self._hand is None:
            raise ArmError("this arm has no gripper: set no_gripper=true")
        with _Said(self._franky, "the gripper does not move"):
            if opened:
                self._gripping = self._hand.open_async(GRIPPER_SPEED)
            else:
                self._gripping = self._hand.grasp_async(
                    0.0, GRIPPER_SPEED, GRIPPER_FORCE, epsilon_inner=0.0, epsilon_outer=WIDEST
                )

    def stop(self) -> None:
        """See Arm."""
        with _Said(self._franky, "the arm does not stop"):
            if self._tracker is not None:
                self._end_tracking()
            else:
                self._reached().stop()

    def recover(self) -> None:
        """See Arm."""
        with _Said(self._franky, "the arm does not recover"):
            robot = self._reached()
            if robot.has_errors:
                self._tracker = None
                if not robot.recover_from_errors():
                    raise ArmError("the arm does not recover: release the user stop, unlock the joints in Desk")

    def close(self) -> None:
        """See Arm."""
        try:
            if self._robot is not None and self._tracker is not None:
                self.stop()
        except ArmError:  # it cannot be told; its own controller stops it when we are gone
            pass
        self._robot = self._hand = self._tracker = None

    def _reached(self) -> Any:
        if self._robot is None:
            raise ArmError("the arm is not connected")
        return self._robot

    def _end_tracking(self) -> None:
        tracker, self._tracker = self._tracker, None
        if tracker is not None and tracker.is_running:
            tracker.stop()

    def _affine(self, pose: Pose) -> Any:
        return self._franky.Affine(pose.position, pose.quaternion)


def _pose(affine: Any) -> Pose:
    position = np.array(affine.translation, np.float64).reshape(3)
    return Pose(position, rotation_from_quaternion(np.array(affine.quaternion, np.float64).reshape(4)))


class _Said:
    """Turns what franky raises into an ArmError."""

    def __init__(self, module: Any, what: str) -> None:
        self._module, self._what = module, what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None and isinstance(error, (self._module.Exception, RuntimeError, OSError)):
            text = " ".join(str(error).split())
            raise ArmError(
                f"{self._what} ({text}): check power, cable and robot_ip, that joints are unlocked and FCI is active "
                "in Desk, and that no other program controls the arm"
            ) from error
