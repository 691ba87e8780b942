"""Poses of the hand: metres and radians in the frame of the arm's base, and what cannot be one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from referee.errors import RefereeError

REACH = 0.855
"""Metres from the shoulder that a Franka's flange reaches."""
SHOULDER = np.array([0.0, 0.0, 0.333])
HAND = 0.11
"""Metres from the flange to the fingertips."""
DOWN = np.diag([1.0, -1.0, -1.0])
"""The hand's orientation with the fingers down, opening along the base's y axis: roll π, pitch 0, yaw 0."""


class PoseError(RefereeError):
    """A pose is not one that this arm can be asked for."""


@dataclass(frozen=True)
class Pose:
    """Where the point between the fingertips is, and how the hand is turned."""

    position: np.ndarray
    """f64[3], metres."""
    rotation: np.ndarray
    """f64[3,3]"""

    @classmethod
    def from_xyzrpy(cls, values: Sequence[float] | np.ndarray) -> Pose:
        """From x, y, z in metres and roll, pitch, yaw in radians (about the fixed axes x, y, z, in this order)."""
        numbers = np.asarray(values, np.float64)
        return cls(numbers[:3].copy(), rotation_from_rpy(numbers[3:]))

    @property
    def quaternion(self) -> np.ndarray:
        """f64[4]: x, y, z, w with w not negative."""
        return quaternion_from_rotation(self.rotation)

    @property
    def xyzrpy(self) -> np.ndarray:
        """f64[6], the inverse of `from_xyzrpy`."""
        return np.concatenate([self.position, rpy_from_rotation(self.rotation)])

    def moved(self, step: np.ndarray, turn: np.ndarray | None = None) -> Pose:
        """The pose after a step f64[3] and a turn f64[3] (a rotation vector), both along the base's axes."""
        rotation = self.rotation if turn is None else rotation_from_vector(turn) @ self.rotation
        return Pose(self.position + step, rotation)

    def apart(self, other: Pose) -> tuple[float, float]:
        """Metres and radians between two poses."""
        cosine = (np.trace(self.rotation.T @ other.rotation) - 1) / 2
        return float(np.linalg.norm(self.position - other.position)), math.acos(float(np.clip(cosine, -1.0, 1.0)))


def rotation_from_rpy(rpy: np.ndarray) -> np.ndarray:
    """f64[3,3]"""
    (sr, sp, sy), (cr, cp, cy) = np.sin(rpy), np.cos(rpy)
    return np.array([
        [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
        [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
        [-sp, cp * sr, cp * cr],
    ])  # fmt: skip


def rpy_from_rotation(rotation: np.ndarray) -> np.ndarray:
    """f64[3]; where the pitch is a right angle, all of the turn about z is yaw."""
    pitch = math.asin(float(np.clip(-rotation[2, 0], -1.0, 1.0)))
    if abs(rotation[2, 0]) > 1 - 1e-9:
        yaw = math.atan2(-rotation[0, 1], rotation[1, 1])
        return np.array([0.0, pitch, yaw])
    roll = math.atan2(rotation[2, 1], rotation[2, 2])
    return np.array([roll, pitch, math.atan2(rotation[1, 0], rotation[0, 0])])


def rotation_from_vector(vector: np.ndarray) -> np.ndarray:
    """f64[3,3]: a turn about `vector` by its length in radians."""
    angle = float(np.linalg.norm(vector))
    if angle < 1e-12:
        return np.eye(3)
    x, y, z = np.asarray(vector) / angle
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross


def quaternion_from_rotation(rotation: np.ndarray) -> np.ndarray:
    """f64[4]: x, y, z, w, from the eigenvector that Bar-Itzhack's matrix has for any rotation."""
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = rotation
    matrix = np.array([
        [xx - yy - zz, 0.0, 0.0, 0.0],
        [yx + xy, yy - xx - zz, 0.0, 0.0],
        [zx + xz, zy + yz, zz - xx - yy, 0.0],
        [zy - yz, xz - zx, yx - xy, xx + yy + zz],
    ])  # fmt: skip
    quaternion = np.linalg.eigh(matrix / 3.0)[1][:, -1]
    return -quaternion if quaternion[3] < 0 else quaternion


def rotation_from_quaternion(quaternion: np.ndarray) -> np.ndarray:
    """f64[3,3] from x, y, z, w."""
    x, y, z, w = np.asarray(quaternion, np.float64) / np.linalg.norm(quaternion)
    return np.array([
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ])  # fmt: skip


def checked_pose(values: Sequence[float], key: str) -> Pose:
    """The pose that `values` (x, y, z, roll, pitch, yaw) say; refused where it can hardly be meant.

    key: how the user calls it. Millimetres, degrees and quaternions are found out here, before an arm moves.
    """
    numbers = np.asarray(values, np.float64)
    if numbers.shape == (7,):
        raise PoseError(
            f"{key} has 7 numbers, as a position with a quaternion has: give x, y, z in metres and roll, pitch, yaw "
            "in radians"
        )
    if numbers.shape != (6,) or not np.isfinite(numbers).all():
        raise PoseError(f"{key} must be six finite numbers: x, y, z in metres and roll, pitch, yaw in radians")
    position, angles = numbers[:3], numbers[3:]
    said = ", ".join(f"{value:g}" for value in numbers)
    far = float(np.linalg.norm(position - SHOULDER))
    if np.abs(position).max() > 10 * REACH:
        raise PoseError(
            f"{key}=[{said}] is not in metres: give x, y, z in metres (divide millimetres by 1000, centimetres by 100)"
        )
    if far > REACH + HAND:
        raise PoseError(
            f"{key}=[{said}] is {far:.2f} m from the arm's shoulder, which reaches {REACH + HAND:.2f} m: give x, y, z "
            "in metres in the frame of the arm's base"
        )
    if np.abs(angles).max() > 2 * math.pi:
        raise PoseError(f"{key}=[{said}] looks like degrees: give roll, pitch, yaw in radians (divide by 57.3)")
    if abs(float(np.linalg.norm(angles)) - 1) < 1e-3 and np.abs(angles).max() < 1 and np.count_nonzero(angles) > 1:
        raise PoseError(
            f"{key}=[{said}] ends in three numbers of length 1, as a part of a quaternion does: give roll, pitch, yaw "
            "in radians"
        )
    pose = Pose.from_xyzrpy(numbers)
    if pose.rotation[2, 2] > 0.5:
        raise PoseError(
            f"{key}=[{said}] has the fingers point up: roll of a hand that points down is about 3.14 (or −3.14), not "
            f"{angles[0]:g}"
        )
    return pose
