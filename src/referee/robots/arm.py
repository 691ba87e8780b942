"""What an arm can be asked for, whether it stands on a table or in a simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from referee.errors import RefereeError
from referee.robots.poses import Pose


class ArmError(RefereeError):
    """The arm did not answer, or refused: whoever commands it must hold."""


@dataclass(frozen=True)
class ArmState:
    """What the arm measured at one moment. Metres and radians, in the frame of its base."""

    time: float
    """When it was measured, in seconds of the loop's clock."""
    pose: Pose
    """Of the point between the fingertips."""
    joints: np.ndarray
    """f64[7]"""
    speeds: np.ndarray
    """f64[7], radians per second."""
    gripper_width: float
    """Metres between the fingers."""


class Arm(Protocol):
    """Commands return at once unless they say otherwise. Every method but `close` may raise ArmError.

    An arm with no new command stands still at its last target: silence is safe.
    """

    def connect(self) -> None:
        """Reach the arm; nothing moves."""

    def state(self) -> ArmState:
        """What it measures now."""

    def move(self, target: Pose) -> None:
        """Head for a pose nearby; a later target takes its place."""

    def move_to(self, target: Pose, *, speed: float) -> None:
        """Go to a pose in a straight line, at so many metres per second at most; returns on arrival."""

    def gripper(self, *, opened: bool) -> None:
        """Open the gripper, or close it on what is between its fingers."""

    def stop(self) -> None:
        """Stand still where it is."""

    def recover(self) -> None:
        """Leave an error behind (a lost connection, a collision reflex), so that commands are taken again."""

    def close(self) -> None:
        """Let go of the arm; it stands still."""
