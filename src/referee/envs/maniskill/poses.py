"""Poses in numpy with the bits of ManiSkill's `Pose`, which makes a tensor of each part of each quaternion.

Sums, differences and products of float32 are rounded in one way only, so numpy and torch agree in every bit as long as
the operations and their order are the same. The order is ManiSkill's; the tests compare both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from mani_skill.utils.structs import Pose

IDENTITY = np.array([1, 0, 0, 0], np.float32)
"""The quaternion of no rotation."""
_PARTS = np.array([[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0]])
_SIGNS = np.array([[1, 1, 1, 1], [-1, 1, -1, 1], [-1, 1, 1, -1], [-1, -1, 1, 1]], np.float32)
_CONJUGATE = np.array([1, -1, -1, -1], np.float32)


def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product f32[4] of two quaternions: each part is a sum of four terms, added from the first to the last."""
    terms = a[:, None] * (_SIGNS * b[_PARTS])
    product: np.ndarray = terms[0] + terms[1] + terms[2] + terms[3]
    return product


def rotate(q: np.ndarray, p: np.ndarray) -> np.ndarray:
    """A position f32[3], rotated by a quaternion f32[4]."""
    point = np.zeros(4, np.float32)
    point[1:] = p
    return multiply(multiply(q, point), q * _CONJUGATE)[1:]


def invert(p: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of a pose."""
    conjugate = q * _CONJUGATE
    return rotate(conjugate, -p), conjugate


def compose(p1: np.ndarray, q1: np.ndarray, p2: np.ndarray, q2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The product of two poses; the real part of its quaternion is not negative."""
    q = multiply(q1, q2)
    return p1 + rotate(q1, p2), -q if q[0] < 0 else q


class SinglePose(Pose):  # type: ignore[misc]  # ManiSkill has no types
    """A batch of one pose, with the arithmetic above."""

    @classmethod
    def of(cls, pose: Any) -> SinglePose:
        """From SAPIEN's pose."""
        return cls._from_parts(pose.p, pose.q)

    @classmethod
    def _from_parts(cls, p: np.ndarray, q: np.ndarray) -> SinglePose:
        return cls(torch.from_numpy(np.concatenate((p, q)))[None])

    def _parts(self) -> tuple[np.ndarray, np.ndarray]:
        row = self.raw_pose[0].numpy()
        return row[:3], row[3:]

    def __mul__(self, other: Any) -> Pose:
        """See `Pose.__mul__`. other: a pose of ManiSkill's or SAPIEN's."""
        if not isinstance(other, Pose):
            return self._from_parts(*compose(*self._parts(), other.p, other.q))
        if len(other) != 1:
            return super().__mul__(other)
        row = other.raw_pose[0].numpy()
        return self._from_parts(*compose(*self._parts(), row[:3], row[3:]))

    def inv(self) -> Pose:
        """See `Pose.inv`."""
        return self._from_parts(*invert(*self._parts()))

    def to_transformation_matrix(self) -> torch.Tensor:
        """f32[1,4,4]"""
        p, q = self._parts()
        # torch's own sum: unlike a product, a sum of several numbers may be taken in any order.
        factor = np.float32(2) / (self.q * self.q).sum(-1).numpy()[0]
        r, i, j, k = q
        matrix = np.eye(4, dtype=np.float32)
        matrix[:3, 3] = p
        matrix[0, :3] = 1 - factor * (j * j + k * k), factor * (i * j - k * r), factor * (i * k + j * r)
        matrix[1, :3] = factor * (i * j + k * r), 1 - factor * (i * i + k * k), factor * (j * k - i * r)
        matrix[2, :3] = factor * (i * k - j * r), factor * (j * k + i * r), 1 - factor * (i * i + j * j)
        return torch.from_numpy(matrix)[None]
