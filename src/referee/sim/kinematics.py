"""Batched differential inverse kinematics: from a step of the hand to a step of the seven joints."""

from __future__ import annotations

import numpy as np

DAMPING = 0.03
"""Keeps the step finite near a stretched arm, at the price of a small lag."""
POSTURE_PULL = 0.1
"""Share of the way back to the home posture that the free seventh joint takes at each step."""

_DAMPED = DAMPING**2 * np.eye(6)


def hand_jacobian(axes: np.ndarray, anchors: np.ndarray, point: np.ndarray) -> np.ndarray:
    """Jacobian f64[N,6,J] (linear over angular) of `point` f64[N,3] for hinge `axes` and `anchors` f64[N,J,3]."""
    jacobian = np.empty((len(axes), 6, axes.shape[1]))
    jacobian[:, :3] = cross(axes, point[:, None, :] - anchors).transpose(0, 2, 1)
    jacobian[:, 3:] = axes.transpose(0, 2, 1)
    return jacobian


def rotation_error(current: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The small rotation f64[N,3] that turns `current` f64[N,3,3] towards `wanted` f64[3,3] or [N,3,3]."""
    wanted = np.broadcast_to(wanted, current.shape)
    return 0.5 * cross(current.swapaxes(1, 2), wanted.swapaxes(1, 2)).sum(axis=1)


def cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cross products over the last axis; several times faster than `np.cross` for small batches."""
    product = np.empty(np.broadcast_shapes(a.shape, b.shape))
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        product[..., i] = a[..., j] * b[..., k] - a[..., k] * b[..., j]
    return product


def joint_step(jacobian: np.ndarray, hand_step: np.ndarray, posture_step: np.ndarray) -> np.ndarray:
    """Damped least squares: joint step f64[N,J] that moves the hand by `hand_step` f64[N,6].

    `posture_step` f64[N,J] is followed as far as the hand does not notice.
    """
    transposed = jacobian.transpose(0, 2, 1)
    gram = jacobian @ transposed
    gram += _DAMPED
    wanted = hand_step[:, :, None] - jacobian @ posture_step[:, :, None]
    return posture_step + (transposed @ np.linalg.solve(gram, wanted))[:, :, 0]
