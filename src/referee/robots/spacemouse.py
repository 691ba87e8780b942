"""Devices that a person steers with: the SpaceMouse, and one that follows a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from referee.errors import MissingDependency, RefereeError
from referee.robots.clock import Clock

INSTALL = 'pip install "referee[franka]" (pyspacemouse; on Debian and Ubuntu also: apt-get install libhidapi-hidraw0)'
DEADZONE = 0.05
"""A puck at rest is rarely exactly at zero."""
DRAIN = 64
"""Reports that may wait in the driver; older ones than the newest mean nothing."""


class InputError(RefereeError):
    """A device to steer with is not there."""


@dataclass(frozen=True)
class Motion:
    """What a person wants right now: each number in −1..1, along and about the axes of the arm's base."""

    translation: np.ndarray = field(default_factory=lambda: np.zeros(3))
    """f64[3]: forward, left, up."""
    rotation: np.ndarray = field(default_factory=lambda: np.zeros(3))
    """f64[3]: about forward, left, up."""
    left: bool = False
    right: bool = False
    time: float = 0.0
    """When it was read, in seconds of the loop's clock."""

    @property
    def active(self) -> bool:
        """Whether anything is moved or pressed."""
        return bool(self.left or self.right or np.any(self.translation) or np.any(self.rotation))


class InputDevice(Protocol):
    """Something to steer with."""

    def read(self) -> Motion:
        """The present motion, without waiting."""

    def close(self) -> None:
        """Let go of the device."""


class SpaceMouse:
    """A 3Dconnexion SpaceMouse; `open_spacemouse` finds one."""

    def __init__(self, device: Any, clock: Clock, *, deadzone: float = DEADZONE) -> None:
        self._device, self._clock, self._deadzone = device, clock, deadzone

    def read(self) -> Motion:
        """See InputDevice."""
        state = self._device.read()
        for _ in range(DRAIN):  # one report per call: go on to the newest
            before = state.t
            state = self._device.read()
            if state.t == before:
                break
        axes = np.array([state.x, state.y, state.z, state.roll, state.pitch, state.yaw], np.float64)
        axes[np.abs(axes) < self._deadzone] = 0.0
        axes = np.clip(axes, -1.0, 1.0)
        buttons = [bool(pressed) for pressed in state.buttons]
        return Motion(axes[:3], axes[3:], buttons[0], buttons[-1] if len(buttons) > 1 else False, self._clock.now())

    def close(self) -> None:
        """See InputDevice."""
        self._device.close()


def open_spacemouse(clock: Clock) -> SpaceMouse:
    """The SpaceMouse that is plugged in."""
    try:
        import pyspacemouse
    except (ImportError, AttributeError, OSError) as error:  # easyhid fails in its own ways without the library
        raise MissingDependency(f"pyspacemouse cannot be imported ({error}): {INSTALL}") from error
    try:
        device = pyspacemouse.open(axis_convention=pyspacemouse.AxisConvention.ROS)
    except Exception as error:  # it raises bare exceptions of several kinds
        raise InputError(
            f"no SpaceMouse can be opened ({error}): plug it in, and let users read it: "
            'echo \'KERNEL=="hidraw*", ATTRS{idVendor}=="256f", MODE="0666"\' | '
            "sudo tee /etc/udev/rules.d/99-spacemouse.rules; sudo udevadm trigger"
        ) from error
    return SpaceMouse(device, clock)


class ScriptedInput:
    """Stands in for a person: a list of motions, one per read, or a function that makes them; then rest."""

    def __init__(self, motions: Sequence[Motion] | Callable[[], Motion] = ()) -> None:
        self._next = motions if callable(motions) else None
        self._motions = [] if callable(motions) else list(motions)

    def read(self) -> Motion:
        """See InputDevice."""
        if self._next is not None:
            return self._next()
        return self._motions.pop(0) if self._motions else Motion()

    def close(self) -> None:
        """See InputDevice."""
