"""Devices that a person steers with: the SpaceMouse, and one that follows a script."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from referee.errors import MissingDependency, RefereeError
from referee.robots.clock import Clock

INSTALL = (
    'pip install "referee-rl[franka]" (pyspacemouse; on Debian and Ubuntu also: apt-get install libhidapi-hidraw0)'
)
DEADZONE = 0.05
"""A puck at rest is rarely exactly at zero."""
DRAIN, FULL = 64, 60
"""Reports that may wait in the driver, of which the newest counts; from so many on it may have dropped newer ones."""
PAUSE = 0.03
"""Seconds within which a puck that is pushed reports again."""
MAX_AGE = 0.3
"""Seconds without a report after which a puck that was pushed is taken as at rest: pushed, it reports all the time."""
REOPEN = 1.0
"""Seconds between two attempts to find a SpaceMouse again that was pulled out."""
_log = logging.getLogger(__name__)


class InputError(RefereeError):
    """A device to steer with is not there, or not any more."""


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

    def __init__(
        self, device: Any, clock: Clock, *, deadzone: float = DEADZONE, max_age: float = MAX_AGE,
        reopen: Callable[[], Any] | None = None,
    ) -> None:  # fmt: skip
        """reopen: finds the device again after it could not be read, or raises InputError."""
        self._device, self._clock, self._deadzone = device, clock, deadzone
        self._max_age, self._reopen, self._retry_at = max_age, reopen, -np.inf
        self._report: float | None = None
        """Of which device time the newest report is,"""
        self._heard = clock.now()
        """and when it came in."""
        self._told = False

    def read(self) -> Motion:
        """See InputDevice; raises InputError while the device is gone."""
        state = self._newest()
        now = self._clock.now()
        axes = np.array([state.x, state.y, state.z, state.roll, state.pitch, state.yaw], np.float64)
        axes[np.abs(axes) < self._deadzone] = 0.0
        axes = np.clip(axes, -1.0, 1.0)
        if axes.any() and now - self._heard > self._max_age:
            if not self._told:
                self._told = True
                _log.warning(
                    "the SpaceMouse has said nothing for %.1f s although it was pushed: it counts as at rest until it "
                    "speaks again; check its cable", self._max_age,
                )  # fmt: skip
            return Motion(time=now)
        buttons = [bool(pressed) for pressed in state.buttons]
        return Motion(axes[:3], axes[3:], buttons[0], buttons[-1] if len(buttons) > 1 else False, now)

    def close(self) -> None:
        """See InputDevice."""
        if self._device is not None:
            self._device.close()

    def _newest(self) -> Any:
        """What the device says now."""
        if self._device is None:
            self._find_again()
        try:
            state, count = self._drain()
            if count >= FULL:  # nobody read for long: these are old, and what came after them was dropped
                self._heard, self._told = -np.inf, True
                self._clock.sleep(PAUSE)
                state, count = self._drain()
        except Exception as error:  # its driver raises bare exceptions of several kinds
            self._device, self._retry_at = None, self._clock.now() + REOPEN
            raise InputError(f"the SpaceMouse is gone ({error}): plug it in again") from error
        if 0 < count < FULL:  # more than that in one pause is no hand: its stamps cannot be told apart
            self._heard, self._told = self._clock.now(), False
        return state

    def _drain(self) -> tuple[Any, int]:
        """What the device says after all reports that waited, one per call, and how many these were."""
        known, count = self._report, 0
        state = self._device.read()
        while state.t != known and count < DRAIN:
            known, count = state.t, count + 1
            state = self._device.read()
        self._report = known
        return state, count

    def _find_again(self) -> None:
        now = self._clock.now()
        if self._reopen is None or now < self._retry_at:
            raise InputError("the SpaceMouse is gone: plug it in again")
        self._retry_at = now + REOPEN
        self._device, self._report, self._heard = self._reopen(), None, now
        _log.warning("the SpaceMouse is back")


def open_spacemouse(clock: Clock, *, max_age: float = MAX_AGE) -> SpaceMouse:
    """The SpaceMouse that is plugged in; found again after it was pulled out. max_age: see `MAX_AGE`."""
    return SpaceMouse(_plugged_in(), clock, max_age=max_age, reopen=_plugged_in)


def _plugged_in() -> Any:
    """pyspacemouse's device."""
    try:
        import pyspacemouse
    except (ImportError, AttributeError, OSError) as error:  # easyhid fails in its own ways without the library
        raise MissingDependency(f"pyspacemouse cannot be imported ({error}): {INSTALL}") from error
    try:
        return pyspacemouse.open(axis_convention=pyspacemouse.AxisConvention.ROS)
    except Exception as error:  # it raises bare exceptions of several kinds
        raise InputError(
            f"no SpaceMouse can be opened ({error}): plug it in, and let users read it: "
            'echo \'KERNEL=="hidraw*", ATTRS{idVendor}=="256f", MODE="0666"\' | '
            "sudo tee /etc/udev/rules.d/99-spacemouse.rules; sudo udevadm trigger"
        ) from error


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
