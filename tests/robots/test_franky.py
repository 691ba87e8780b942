"""The driver of a real arm, as far as it can be tested without one: what it asks of franky, argument by argument.

The real module is used for poses and the names that must exist; only the robot behind it is a double.
"""

import inspect
from typing import Any

import numpy as np
import pytest

from referee.robots.arm import ArmError
from referee.robots.clock import SimulatedClock
from referee.robots.poses import Pose

franky = pytest.importorskip("franky", exc_type=Exception)


class FakeRobot:
    """Remembers what it was asked for."""

    def __init__(self, address: str) -> None:
        self.address, self.moves, self.stopped, self.recovered = address, [], 0, 0
        self.has_errors = False
        self.pose = franky.Affine([0.5, 0.1, 0.2], [1.0, 0.0, 0.0, 0.0])

    @property
    def state(self) -> Any:
        class State:
            O_T_EE = self.pose
            q, dq = np.arange(7.0), np.zeros(7)

        return State

    def move(self, motion: Any) -> None:
        self.moves.append(motion)

    def stop(self) -> None:
        self.stopped += 1

    def recover_from_errors(self) -> bool:
        self.recovered += 1
        self.has_errors = False
        return True


class FakeTracker:
    def __init__(self, robot: FakeRobot, *, translational_stiffness: float) -> None:
        self.robot, self.stiffness, self.targets, self.is_running = robot, translational_stiffness, [], True
        robot.tracker = self  # type: ignore[attr-defined]

    def set_target(self, pose: Any) -> None:
        self.targets.append(pose)

    def stop(self) -> None:
        self.is_running = False


class FakeGripper:
    def __init__(self, address: str) -> None:
        self.calls: list[Any] = []
        self.width = 0.04

    def open_async(self, speed: float) -> None:
        self.calls.append(("open", speed))

    def grasp_async(self, width: float, speed: float, force: float, epsilon_inner: float, epsilon_outer: float) -> None:
        self.calls.append(("grasp", width, epsilon_outer))


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch) -> Any:
    from referee.robots.franky import Franky

    monkeypatch.setattr(franky, "Robot", FakeRobot)
    monkeypatch.setattr(franky, "Gripper", FakeGripper)
    monkeypatch.setattr(franky, "CartesianImpedanceTracker", FakeTracker)
    made = Franky("172.16.0.2", SimulatedClock(), stiffness=300.0)
    with pytest.raises(ArmError, match="not connected"):
        made.state()
    made.connect()
    return made


def test_the_doubles_take_what_franky_takes() -> None:
    real = franky.tracker.CartesianImpedanceTracker
    assert "translational_stiffness" in inspect.signature(real.__init__).parameters
    assert {"set_target", "stop", "is_running"} <= set(dir(real))
    assert {"recover_from_errors", "has_errors", "state", "stop", "move"} <= set(dir(franky.robot.Robot))
    for name in ("O_T_EE", "q", "dq"):
        assert hasattr(franky.RobotState, name)


def test_state_is_in_our_units(arm: Any) -> None:
    state = arm.state()
    np.testing.assert_allclose(state.pose.xyzrpy, [0.5, 0.1, 0.2, np.pi, 0, 0], atol=1e-9)
    assert state.joints.tolist() == list(range(7)) and state.gripper_width == 0.04


def test_a_step_is_a_target_of_the_tracker(arm: Any) -> None:
    for x in (0.5, 0.52):
        arm.move(Pose.from_xyzrpy([x, 0, 0.2, np.pi, 0, 0]))
    tracker = arm._robot.tracker
    assert tracker.stiffness == 300.0 and len(tracker.targets) == 2
    np.testing.assert_allclose(np.ravel(tracker.targets[1].translation), [0.52, 0, 0.2])
    np.testing.assert_allclose(np.abs(np.ravel(tracker.targets[1].quaternion)), [1, 0, 0, 0], atol=1e-9)
    arm.stop()
    assert not tracker.is_running
    arm.move(Pose.from_xyzrpy([0.5, 0, 0.2, np.pi, 0, 0]))
    assert arm._robot.tracker is not tracker


def test_a_long_way_is_a_slow_absolute_motion(arm: Any) -> None:
    arm.move(Pose.from_xyzrpy([0.5, 0, 0.2, np.pi, 0, 0]))
    arm.move_to(Pose.from_xyzrpy([0.4, 0, 0.3, np.pi, 0, 0]), speed=0.17)
    assert not arm._robot.tracker.is_running
    (motion,) = arm._robot.moves
    assert isinstance(motion, franky.CartesianMotion)
    assert motion.reference_type == franky.ReferenceType.Absolute
    np.testing.assert_allclose(np.ravel(motion.target.pose.end_effector_pose.translation), [0.4, 0, 0.3])


def test_the_gripper(arm: Any) -> None:
    arm.gripper(opened=True)
    arm.gripper(opened=False)
    assert arm._hand.calls == [("open", 0.1), ("grasp", 0.0, 0.08)]


def test_after_an_error_it_refuses_until_it_recovers(arm: Any) -> None:
    arm._robot.has_errors = True
    with pytest.raises(ArmError, match="recover it"):
        arm.move(Pose.from_xyzrpy([0.5, 0, 0.2, np.pi, 0, 0]))
    arm.recover()
    arm.move(Pose.from_xyzrpy([0.5, 0, 0.2, np.pi, 0, 0]))
    assert arm._robot.recovered == 1


def test_what_franky_raises_is_one_line_with_the_fix() -> None:
    from referee.robots.franky import Franky

    with pytest.raises(ArmError, match=r"arm at 127\.0\.0\.1 cannot be reached .*: check power, cable and robot_ip"):
        Franky("127.0.0.1", SimulatedClock()).connect()
