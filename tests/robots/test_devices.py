"""RealSense through its software device, the SpaceMouse through its own decoder, and the self-tests of all devices."""

import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from referee.robots import cameras
from referee.robots.cameras import CameraError, RealSense, open_realsense, square
from referee.robots.check import ASKED, check_arm, check_camera, check_spacemouse
from referee.robots.clock import SimulatedClock, WallClock
from referee.robots.spacemouse import InputError, Motion, ScriptedInput, SpaceMouse
from referee.robots.twin import Faults, Twin
from referee.sim.scene import Scene


def test_the_middle_of_a_picture_is_scaled() -> None:
    image = np.zeros((48, 64, 3), np.uint8)
    image[:, 8:32] = 200  # left half of the middle square
    small = square(image, 12)
    assert small.shape == (12, 12, 3)
    assert (small[:, :6] == 200).all() and (small[:, 6:] == 0).all()


def test_a_realsense_gives_dated_numbered_frames() -> None:
    rs = pytest.importorskip("pyrealsense2")
    device = rs.software_device()
    sensor = device.add_sensor("colour")
    stream = rs.video_stream()
    stream.type, stream.index, stream.uid, stream.width, stream.height, stream.fps, stream.bpp, stream.fmt = (
        rs.stream.color, 0, 0, 64, 48, 30, 3, rs.format.rgb8)  # fmt: skip
    profile = sensor.add_video_stream(stream)
    camera = RealSense("wrist", 12, WallClock())
    with pytest.raises(CameraError, match="camera wrist has given no frame yet"):
        camera.frame()
    sensor.open(profile)
    sensor.start(camera.take)

    def send(number: int, value: int) -> None:
        frame = rs.software_video_frame()
        frame.pixels = np.full((48, 64, 3), value, np.uint8)
        frame.stride, frame.bpp, frame.timestamp, frame.frame_number = 64 * 3, 3, 33.0 * number, number
        frame.domain, frame.profile = rs.timestamp_domain.system_time, profile.as_video_stream_profile()
        sensor.on_video_frame(frame)

    for number, value in ((1, 10), (2, 250)):
        send(number, value)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            try:
                if camera.frame().number == number:
                    break
            except CameraError:
                pass
            time.sleep(0.01)
        seen = camera.frame()
        assert seen.number == number and (seen.image == value).all() and seen.image.shape == (12, 12, 3)
        assert time.monotonic() - seen.time < 5
    again = camera.frame()
    assert (again.number, again.time) == (seen.number, seen.time)
    sensor.stop()
    sensor.close()


class FakeRealSense(SimpleNamespace):
    """pyrealsense2 with two cameras; `starts` says what happens when one is started."""

    def __init__(self, starts: Any = None) -> None:
        self.enabled: list[str] = []
        self.stopped = 0
        self.camera_info = SimpleNamespace(serial_number="serial")
        self.stream, self.format = SimpleNamespace(color="color"), SimpleNamespace(rgb8="rgb8")
        devices = [SimpleNamespace(get_info=lambda _, serial=serial: serial) for serial in ("111", "222")]
        self.context = lambda: SimpleNamespace(query_devices=lambda: devices)
        self.config = lambda: SimpleNamespace(
            enable_device=self.enabled.append, enable_stream=lambda *how: self.enabled.append(how)
        )
        self.pipeline = lambda: SimpleNamespace(start=starts or self.give, stop=self.stop)

    def give(self, config: Any, take: Any) -> None:
        pixels = np.full((480, 640, 3), 7, np.uint8)
        take(SimpleNamespace(is_frameset=lambda: False, get_data=lambda: pixels, get_frame_number=lambda: 1))

    def stop(self) -> None:
        self.stopped += 1


def with_realsense(monkeypatch: pytest.MonkeyPatch, starts: Any = None) -> FakeRealSense:
    fake = FakeRealSense(starts)
    monkeypatch.setitem(sys.modules, "pyrealsense2", fake)
    return fake


def test_a_realsense_is_opened_by_its_serial_number(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = with_realsense(monkeypatch)
    camera = open_realsense("wrist", "222", 12, SimulatedClock())
    assert fake.enabled == ["222", ("color", 640, 480, "rgb8", 30)]
    assert camera.frame().number == 1 and camera.frame().image.shape == (12, 12, 3)
    camera.close()
    assert fake.stopped == 1
    with pytest.raises(CameraError, match=r"camera front \(serial 333\) is not there, plugged in are 111, 222: check"):
        open_realsense("front", "333", 12, SimulatedClock())


def test_a_realsense_that_does_not_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(config: Any, take: Any) -> None:
        raise RuntimeError("Device or resource busy")

    with_realsense(monkeypatch, busy)
    with pytest.raises(CameraError, match=r"does not start \(Device or resource busy\): is another program using it"):
        open_realsense("wrist", "111", 12, SimulatedClock())


def test_a_realsense_that_streams_nothing_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = with_realsense(monkeypatch, lambda config, take: None)
    monkeypatch.setattr(cameras.time, "sleep", lambda seconds: None)
    with pytest.raises(CameraError, match="streams nothing: plug it into a USB 3 port"):
        open_realsense("wrist", "111", 12, SimulatedClock())
    assert fake.stopped == 1


class FakeHid:
    """What easyhid gives pyspacemouse: reports that wait, then nothing."""

    def __init__(self, reports: list[bytes]) -> None:
        self.reports = reports

    def read(self, size: int) -> bytes:
        return self.reports.pop(0) if self.reports else b""

    def close(self) -> None:
        self.reports = []


def test_a_spacemouse_is_read_to_its_newest_report() -> None:
    moved = SimpleNamespace(x=0.5, y=-0.01, z=0.0, roll=0.0, pitch=0.0, yaw=1.4, buttons=[1, 0], t=3.0)
    device = SimpleNamespace(read=lambda: moved, close=lambda: None)
    motion = SpaceMouse(device, SimulatedClock()).read()
    assert motion.translation.tolist() == [0.5, 0.0, 0.0]  # a puck at rest is rarely exactly at zero
    assert motion.rotation.tolist() == [0.0, 0.0, 1.0]
    assert motion.left and not motion.right and motion.active
    assert not Motion().active


class Puck:
    """pyspacemouse's device, as pushed as one likes: a new report per read while it `speaks`."""

    def __init__(self) -> None:
        self.speaks = True
        self.state = SimpleNamespace(x=1.0, y=0.0, z=0.0, roll=0.0, pitch=0.0, yaw=0.0, buttons=[0, 0], t=0.0)
        self.waiting = 1

    def read(self) -> SimpleNamespace:
        if self.waiting:
            self.waiting -= 1
            self.state.t += 0.01
        return self.state

    def close(self) -> None: ...


def test_a_puck_that_falls_silent_is_at_rest(caplog: pytest.LogCaptureFixture) -> None:
    """Pushed, a SpaceMouse reports all the time: silence means that nobody knows what is wanted."""
    puck, clock = Puck(), SimulatedClock()
    mouse, moved = SpaceMouse(puck, clock), []
    for step in range(20):
        puck.waiting = 1 if step < 3 or step >= 15 else 0
        moved.append(mouse.read().active)
        clock.sleep(0.1)
    assert moved == [True] * 6 + [False] * 9 + [True] * 5
    assert [record.message.split(" for")[0] for record in caplog.records] == ["the SpaceMouse has said nothing"]


def test_what_was_pushed_while_nobody_read_moves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The driver keeps the oldest reports: after a way back to the start, they are of long ago."""
    puck, clock = Puck(), SimulatedClock()
    mouse = SpaceMouse(puck, clock)
    assert mouse.read().active
    clock.sleep(5)
    puck.waiting = 60
    assert not mouse.read().active
    clock.sleep(0.1)
    assert not mouse.read().active
    puck.waiting = 1
    assert mouse.read().active  # a report of now


def test_a_spacemouse_that_is_pulled_out_is_found_again() -> None:
    def pulled() -> None:
        raise OSError("read error")

    clock, there = SimulatedClock(), [False]

    def look() -> Puck:
        if not there[0]:
            raise InputError("no SpaceMouse can be opened")
        return Puck()

    mouse = SpaceMouse(SimpleNamespace(read=pulled, close=lambda: None), clock, reopen=look)
    for _ in range(15):
        with pytest.raises(InputError):
            mouse.read()
        clock.sleep(0.1)
    there[0] = True
    clock.sleep(1.0)
    assert mouse.read().active
    mouse.close()


def test_pyspacemouse_speaks_in_the_frame_of_the_base() -> None:
    pyspacemouse = pytest.importorskip("pyspacemouse", exc_type=Exception)
    specs = pyspacemouse.get_device_specs()
    spec = next(value for name, value in specs.items() if "Compact" in name)
    spec = pyspacemouse.apply_axis_convention(spec, pyspacemouse.AxisConvention.ROS)
    push = (350).to_bytes(2, "little", signed=True)
    pull = (-350).to_bytes(2, "little", signed=True)
    none = b"\0\0"
    # The device itself says: x right, y towards the person, z down.
    forward = bytes([1]) + none + pull + none + none * 3
    left = bytes([1]) + pull + none + none + none * 3
    up = bytes([1]) + none + none + pull + none * 3
    for report, wanted in ((forward, [1, 0, 0]), (left, [0, 1, 0]), (up, [0, 0, 1])):
        device = pyspacemouse.SpaceMouseDevice(info=spec, device=FakeHid([bytes([1]) + push * 6, report]))
        motion = SpaceMouse(device, SimulatedClock()).read()
        np.testing.assert_allclose(motion.translation, wanted, atol=0.05)


# --- self-tests ---


def twin(**faults: Any) -> Twin:
    return Twin(Scene(), SimulatedClock(), cameras=("wrist",), faults=Faults(**faults))


def test_a_healthy_twin_passes() -> None:
    arm = twin()
    answers, pose = check_arm(arm, arm.clock)
    assert answers.good and pose.good and "0.4800, 0.0000, 0.2000, 3.1416" in pose.detail
    found = check_camera(arm.cameras[0], arm.clock, control_hz=10)
    assert found.good and f"{ASKED} new frames" in found.detail
    arm.close()


def test_each_fault_is_named_with_its_fix() -> None:
    lost = twin(lost=True)
    (found,) = check_arm(lost, lost.clock)
    assert not found.good and "does not answer" in found.detail and "robot_ip" in found.fix
    slow = twin(reply_seconds=0.2)
    first = next(check_arm(slow, slow.clock))
    assert not first.good and "200 ms" in first.detail and "real-time kernel" in first.fix
    frozen = twin()
    frozen.cameras[0].frame()
    frozen.faults = Faults(frozen=("wrist",))
    found = check_camera(frozen.cameras[0], frozen.clock, control_hz=10)
    assert not found.good and f"{ASKED - 1} of {ASKED} frames" in found.detail and "USB 3" in found.fix
    dark = twin(dark=("wrist",))
    assert "gives no frames" in check_camera(dark.cameras[0], dark.clock, control_hz=10).detail
    frozen.close()


def test_a_spacemouse_that_sends_zeros_is_found_out() -> None:
    found = check_spacemouse(ScriptedInput(), SimulatedClock())
    assert not found.good and "nothing but zeros" in found.detail and "spacenavd" in found.fix
    moved = [Motion(), Motion(translation=np.array([0.3, 0.0, 0.0]))]
    assert check_spacemouse(ScriptedInput(moved), SimulatedClock()).good


@pytest.mark.parametrize("stamps", [lambda n: float("nan"), lambda n: 1e9, lambda n: -1e9])
def test_a_puck_whose_reports_are_stamped_oddly_is_not_pushed_for_ever(stamps: Any) -> None:
    """Whatever a device says of its time: a report that nothing follows moves the arm for 0.3 s."""
    clock, count = SimulatedClock(), [0]

    def read() -> SimpleNamespace:
        count[0] += 1
        return SimpleNamespace(t=stamps(count[0]), x=1.0, y=0.0, z=0.0, roll=0.0, pitch=0.0, yaw=0.0, buttons=[0, 0])

    mouse, moved = SpaceMouse(SimpleNamespace(read=read, close=lambda: None), clock), []
    for _ in range(20):
        moved.append(mouse.read().active)
        clock.sleep(0.1)
    assert sum(moved) <= 4 and not any(moved[4:])
