"""What an arm may be asked to do: pure functions between an action and a command."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from referee.robots.poses import DOWN, Pose

MARGIN = 0.02
"""Metres outside its box from which an arm is held to be somewhere that it should not be."""
NOTICED = 1e-3
"""Metres of a step that must be cut off before it is worth a word."""


@dataclass(frozen=True)
class Limits:
    """Where the fingertips may be, and how far one step goes."""

    low: np.ndarray
    high: np.ndarray
    """f64[3] each, metres in the frame of the base."""
    max_step: float
    max_turn: float
    max_tilt: float

    def outside(self, position: np.ndarray) -> float:
        """Metres that a position lies outside the box; 0 inside."""
        return float(np.linalg.norm(position - np.clip(position, self.low, self.high)))


@dataclass(frozen=True)
class Freshness:
    """How far a time stamp may be from now, in seconds."""

    max_age: float
    max_ahead: float

    def problem(self, stamp: float, now: float) -> str | None:
        """What is wrong with a stamp outside [now − max_age, now + max_ahead]; None if nothing is."""
        age = now - stamp
        if -self.max_ahead <= age <= self.max_age:
            return None
        if math.isnan(age):
            return "without a time stamp"
        return f"{age:.2f} s old" if age > 0 else f"stamped {-age:.2f} s in the future"


@dataclass(frozen=True)
class Command:
    """What becomes of an action: a target, or none where the arm must hold; and a word where something was cut off."""

    target: Pose | None
    said: str | None = None


def guarded(pose: Pose, move: np.ndarray, turn: np.ndarray | None, limits: Limits) -> Command:
    """The command for a hand at `pose` that is asked to move f64[3] and turn f64[3], each in −1..1 of a full step.

    A step that is too long is shortened, one that leads out of the box ends at its wall, a turn that would tilt the
    hand too far is not made. An arm that is outside its box is not moved at all: somebody has to look.
    """
    away = strayed(pose, limits)
    if away is not None:
        return Command(None, away)
    step = limits.max_step * np.asarray(move, np.float64)
    wanted = pose.position + shortened(step, limits.max_step)
    allowed = np.clip(wanted, limits.low, limits.high)
    turned = None if turn is None else shortened(limits.max_turn * np.asarray(turn, np.float64), limits.max_turn)
    target = pose.moved(shortened(allowed - pose.position, limits.max_step), turned)
    said = []
    if np.abs(wanted - allowed).max() > NOTICED:
        axes = [name for name, a, b in zip("xyz", wanted, allowed, strict=True) if abs(a - b) > NOTICED]
        said.append(f"the workspace ends here ({', '.join(axes)})")
    if turned is not None and tilt(target.rotation) > max(limits.max_tilt, tilt(pose.rotation)):
        target = Pose(target.position, pose.rotation)
        said.append("the hand may not tilt further")
    return Command(target, "; ".join(said) or None)


def strayed(pose: Pose, limits: Limits) -> str | None:
    """Where a hand is that is too far outside its box to be moved; None where it may be."""
    beyond = limits.outside(pose.position)
    if beyond <= MARGIN:
        return None
    where = ", ".join(f"{value:.3f}" for value in pose.position)
    return f"the arm is {100 * beyond:.1f} cm outside its workspace, at {where}"


def shortened(step: np.ndarray, most: float) -> np.ndarray:
    """The same direction, at most so long."""
    length = float(np.linalg.norm(step))
    return step if length <= most else step * (most / length)


def tilt(rotation: np.ndarray) -> float:
    """Radians between the hand's axis and straight down."""
    return math.acos(float(np.clip(rotation[:, 2] @ DOWN[:, 2], -1.0, 1.0)))
