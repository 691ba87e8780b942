"""Self-tests of devices: each says in one line what it found, and where something is wrong, what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from referee.errors import RefereeError
from referee.robots.arm import Arm, ArmError
from referee.robots.cameras import Camera
from referee.robots.clock import Clock
from referee.robots.spacemouse import InputDevice

ASKED = 20
"""Times that a device is asked."""
SLOW = 0.05
"""Seconds from which an answer of the arm takes too much of a step."""
DARK = 8.0
"""Mean brightness of a picture that shows nothing."""
PATIENCE = 10.0
"""Seconds that a person has to touch the SpaceMouse."""


@dataclass(frozen=True)
class Found:
    """What a test found."""

    what: str
    good: bool
    detail: str
    fix: str = ""

    @classmethod
    def ok(cls, what: str, detail: str) -> Found:
        """All is well."""
        return cls(what, True, detail)

    @classmethod
    def bad(cls, what: str, detail: str, fix: str) -> Found:
        """Something is wrong, and what to do."""
        return cls(what, False, detail, fix)


def check_arm(arm: Arm, clock: Clock) -> Iterator[Found]:
    """Whether the arm answers, in time, and where it is. Nothing moves."""
    try:
        arm.connect()
        delays, state = [], arm.state()
        for _ in range(ASKED):
            asked = clock.now()
            state = arm.state()
            delays.append(clock.now() - asked)
            clock.sleep(0.01)
    except (ArmError, RefereeError) as error:
        what, _, fix = str(error).rpartition(": ")
        yield Found.bad("arm", what or str(error), fix if what else "check power, cable and robot_ip")
        return
    slowest = max(delays)
    if slowest > SLOW:
        yield Found.bad(
            "arm", f"it answers after up to {1000 * slowest:.0f} ms",
            "use a network card and cable for the arm alone, and a real-time kernel (`uname -v` says PREEMPT_RT)",
        )  # fmt: skip
    else:
        yield Found.ok("arm", f"it answers within {1000 * slowest:.0f} ms")
    said = ", ".join(f"{value:.4f}" for value in state.pose.xyzrpy)
    yield Found.ok("pose", f"[{said}]  (as target_ee_pose takes it: metres, radians, frame of the base)")


def check_camera(camera: Camera, clock: Clock, *, control_hz: float) -> Found:
    """Whether a camera gives a new picture for each step, and whether there is something on it."""
    name = f"camera {camera.name}"
    try:
        frames = []
        for _ in range(ASKED):
            frames.append(camera.frame())
            clock.sleep(1 / control_hz)
    except RefereeError as error:
        what, _, fix = str(error).rpartition(": ")
        return Found.bad(name, what or str(error), fix if what else "check its USB 3 cable")
    fresh = len({frame.number for frame in frames})
    if fresh < ASKED:
        return Found.bad(
            name, f"{ASKED - fresh} of {ASKED} frames at {control_hz:g} Hz were repeated",
            "plug it into a USB 3 port of its own (not a hub), and close other programs that use it",
        )  # fmt: skip
    brightness = float(frames[-1].image.mean())
    if brightness < DARK:
        return Found.bad(
            name, f"its picture is black (mean {brightness:.0f} of 255)", "take the cap off, turn on light"
        )
    if np.ptp(frames[-1].image) < DARK:
        return Found.bad(name, "its picture is all of one colour", "see that it looks at the table")
    return Found.ok(name, f"{fresh} new frames in {ASKED} steps, mean brightness {brightness:.0f}")


def check_spacemouse(device: InputDevice, clock: Clock) -> Found:
    """Whether the SpaceMouse says something within some seconds in which a person moves it."""
    end = clock.now() + PATIENCE
    while clock.now() < end:
        try:
            motion = device.read()
        except RefereeError as error:
            return Found.bad("SpaceMouse", str(error), "plug it into another port, without a hub")
        if motion.active:
            axes = np.concatenate([motion.translation, motion.rotation])
            said = ", ".join(f"{value:+.2f}" for value in axes)
            return Found.ok("SpaceMouse", f"it says {said}; buttons {motion.left:d}{motion.right:d}")
        clock.sleep(0.02)
    return Found.bad(
        "SpaceMouse", f"it sent nothing but zeros for {PATIENCE:.0f} s",
        "move the puck while this test runs; if you did, replug it, and stop spacenavd (sudo systemctl stop spacenavd)",
    )  # fmt: skip
