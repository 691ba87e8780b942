"""The twin speaks the driver's interface in the driver's units, in its own time, with faults on demand."""

import numpy as np
import pytest

from referee.robots.arm import Arm, ArmError
from referee.robots.cameras import CameraError
from referee.robots.clock import SimulatedClock, WallClock
from referee.robots.poses import Pose
from referee.robots.twin import Faults, Twin
from referee.sim.scene import Scene


@pytest.fixture
def twin() -> Twin:
    return Twin(Scene(cube=True), SimulatedClock())


def test_it_is_an_arm(twin: Twin) -> None:
    arm: Arm = twin
    state = arm.state()
    np.testing.assert_allclose(state.pose.xyzrpy, [0.48, 0, 0.2, np.pi, 0, 0], atol=1e-4)
    assert state.joints.shape == state.speeds.shape == (7,)
    assert state.gripper_width == pytest.approx(0.08, abs=1e-3)


def test_a_step_of_the_hand_arrives_within_a_period(twin: Twin) -> None:
    here = twin.state().pose
    twin.move(here.moved(np.array([0.02, -0.01, 0.0]), np.array([0.0, 0.0, 0.1])))
    np.testing.assert_array_equal(twin.state().pose.position, here.position)  # no time has passed
    twin.clock.sleep(0.3)
    moved, turned = twin.state().pose.apart(here.moved(np.array([0.02, -0.01, 0.0]), np.array([0.0, 0.0, 0.1])))
    assert moved < 0.002 and turned < 0.02


def test_silence_is_safe(twin: Twin) -> None:
    twin.move(twin.state().pose.moved(np.array([0.02, 0.0, 0.0])))
    twin.clock.sleep(1.0)
    there = twin.state()
    twin.clock.sleep(3600.0)
    assert there.pose.apart(twin.state().pose)[0] < 1e-3
    assert np.abs(twin.state().speeds).max() < 0.01


def test_stop_stops_where_it_is(twin: Twin) -> None:
    start = twin.state().pose
    twin.move(start.moved(np.array([0.05, 0.0, 0.0])))
    twin.clock.sleep(0.03)
    twin.stop()
    stopped = twin.state().pose
    twin.clock.sleep(1.0)
    assert 0 < stopped.apart(start)[0] < 0.045
    assert twin.state().pose.apart(stopped)[0] < 0.02  # what it had of speed, it uses up


def test_it_goes_to_a_pose_at_a_speed(twin: Twin) -> None:
    target = Pose.from_xyzrpy([0.5, 0.1, 0.15, -3.1, 0.1, 0.2])
    way, before = twin.state().pose.apart(target)[0], twin.clock.now()
    twin.move_to(target, speed=0.1)
    assert twin.clock.now() - before == pytest.approx(way / 0.1, abs=0.1)
    metres, radians = twin.state().pose.apart(target)
    assert metres < 1e-3 and radians < 1e-3
    with pytest.raises(ArmError, match="cannot reach"):
        twin.move_to(Pose.from_xyzrpy([1.4, 0, 0.2, 3.14, 0, 0]), speed=1.0)


def test_it_is_lifted_also_where_a_rim_has_tilted_the_hand(twin: Twin) -> None:
    tilted = Pose.from_xyzrpy([0.467, -0.029, 0.17, 3.122, -0.476, 0.006])  # of a reset that once ended a run
    twin.move_to(tilted, speed=0.2)
    assert max(twin.state().pose.apart(tilted)) < 1e-3


def test_the_gripper_opens_and_closes(twin: Twin) -> None:
    twin.gripper(opened=False)
    twin.clock.sleep(1.0)
    assert twin.state().gripper_width < 0.005
    twin.gripper(opened=True)
    twin.clock.sleep(1.0)
    assert twin.state().gripper_width > 0.075


def test_a_lost_connection_and_a_refusal_are_errors(twin: Twin) -> None:
    pose = twin.state().pose
    twin.faults = Faults(lost=True)
    for call in (twin.connect, twin.state, twin.stop, twin.recover, lambda: twin.move(pose)):
        with pytest.raises(ArmError, match="does not answer"):
            call()
    twin.faults = Faults(refused=True)
    assert twin.state().pose.apart(pose)[0] < 1e-9
    with pytest.raises(ArmError, match="recover it"):
        twin.move(pose)
    twin.recover()
    twin.move(pose)


def test_a_late_reply_is_as_old_as_it_is_late(twin: Twin) -> None:
    twin.faults = Faults(reply_seconds=0.25)
    state = twin.state()
    assert twin.clock.now() - state.time == pytest.approx(0.25)


def test_frames_are_numbered_and_dated() -> None:
    twin = Twin(Scene(cube=True), SimulatedClock(), cameras=("wrist", "front"))
    wrist, front = twin.cameras
    first = wrist.frame()
    assert wrist.frame().number == first.number and first.image.shape == (64, 64, 3)
    twin.move(twin.state().pose.moved(np.array([0.04, 0.0, 0.0])))
    twin.clock.sleep(0.2)
    second = wrist.frame()
    assert second.number == first.number + 1 and second.time == pytest.approx(0.2)
    assert not np.array_equal(second.image, first.image)
    assert not np.array_equal(front.frame().image, second.image)
    twin.faults = Faults(frozen=("wrist",))
    twin.clock.sleep(0.5)
    assert (wrist.frame().number, wrist.frame().time) == (second.number, second.time)
    assert front.frame().time == pytest.approx(0.7)
    twin.faults = Faults(frame_seconds=0.4)
    twin.clock.sleep(1.0)
    assert twin.clock.now() - wrist.frame().time == pytest.approx(0.4)
    twin.faults = Faults(dark=("front",))
    with pytest.raises(CameraError, match="camera front gives no frames"):
        front.frame()
    twin.close()


def test_with_the_walls_clock_it_moves_while_nobody_asks() -> None:
    clock = WallClock()
    twin = Twin(Scene(), clock)
    start = twin.state().pose
    twin.move(start.moved(np.array([0.02, 0.0, 0.0])))
    clock.sleep(0.15)
    assert twin.state().pose.apart(start)[0] > 0.01


def test_a_saved_twin_goes_on_bit_by_bit(twin: Twin) -> None:
    twin.arrange(np.array([0.5, 0.1, 0.2]), np.array([0.45, 0.05, 0.02, 1, 0, 0, 0]))
    twin.move(twin.state().pose.moved(np.array([0.02, 0.0, -0.02])))
    twin.clock.sleep(0.1)
    twin.state()
    saved, other = twin.save_state(), Twin(Scene(cube=True), SimulatedClock())
    other.restore_state(saved)
    for each in (twin, other):
        each.clock.sleep(0.1)
    np.testing.assert_array_equal(twin.state().joints, other.state().joints)
