"""Batched differential inverse kinematics: from a step of the hand to a step of the seven joints."""

from __future__ import annotations

import numpy as np

DAMPING = 0.03
"""Keeps the step finite near a stretched arm, at the price of a small lag."""
POSTURE_PULL = 0.1
"""Share of the way back to the home posture that the free seventh joint takes at each step."""


def hand_jacobian(axes: np.ndarray, anchors: np.ndarray, point: np.ndarray) -> np.ndarray:
    """Jacobian f64[N,6,J] (linear over angular) of `point` f64[N,3] for hinge `axes` and `anchors` f64[N,J,3]."""
    linear = np.cross(axes, point[:, None, :] - anchors)
    return np.concatenate([linear, axes], axis=2).transpose(0, 2, 1)


def rotation_error(current: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The small rotation f64[N,3] that turns `current` f64[N,3,3] towards `wanted` f64[3,3] or [N,3,3]."""
    return 0.5 * np.cross(current, wanted, axisa=-2, axisb=-2, axisc=-2).sum(axis=-1)


def joint_step(jacobian: np.ndarray, hand_step: np.ndarray, posture_step: np.ndarray) -> np.ndarray:
    """Damped least squares: joint step f64[N,J] that moves the hand by `hand_step` f64[N,6].

    `posture_step` f64[N,J] is followed as far as the hand does not notice.
    """
    transposed = jacobian.transpose(0, 2, 1)
    gram = jacobian @ transposed
    gram += DAMPING**2 * np.eye(jacobian.shape[1])
    wanted = hand_step[:, :, None] - jacobian @ posture_step[:, :, None]
    return posture_step + (transposed @ np.linalg.solve(gram, wanted))[:, :, 0]
