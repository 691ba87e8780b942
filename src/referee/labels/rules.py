"""Rules that turn signals about states into success: pure functions over arrays whose last axis is time."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def hold(in_zone: np.ndarray, steps: int) -> np.ndarray:
    """bool[..., T+1]: a state is a success when it and the `steps - 1` before it were in the zone.

    To leave the zone starts the count again (`success_hold_steps`); 1 takes the zone as it is.
    """
    if steps < 1:
        raise ValueError(f"success_hold_steps must be at least 1, not {steps}")
    inside = np.asarray(in_zone, bool)
    index = np.arange(inside.shape[-1])
    last_outside = np.maximum.accumulate(np.where(inside, -1, index), axis=-1)
    return index - last_outside >= steps


def near(positions: np.ndarray, target: ArrayLike, tolerance: ArrayLike) -> np.ndarray:
    """bool[..., T+1]: positions [..., T+1, d] within a distance of the target, or within one for each axis."""
    offset = np.asarray(positions, np.float64) - np.asarray(target, np.float64)
    limit = np.asarray(tolerance, np.float64)
    if limit.ndim == 0:
        return np.asarray(np.linalg.norm(offset, axis=-1) <= limit)
    return np.asarray((np.abs(offset) <= limit).all(axis=-1))


def aligned(quaternions: np.ndarray, target: ArrayLike, tolerance: float) -> np.ndarray:
    """bool[..., T+1]: rotations [..., T+1, 4] within an angle (radians) of the target, in one order of the four."""
    turns, goal = np.asarray(quaternions, np.float64), np.asarray(target, np.float64)
    lengths = np.linalg.norm(turns, axis=-1) * np.linalg.norm(goal)
    if not np.all(lengths > 0):
        raise ValueError("a quaternion of length 0 is no rotation")
    # q and -q are the same rotation.
    return 2 * np.arccos(np.clip(np.abs(turns @ goal) / lengths, 0, 1)) <= tolerance


def near_pose(poses: np.ndarray, target: ArrayLike, *, position: ArrayLike, rotation: float | None) -> np.ndarray:
    """bool[..., T+1]: poses [..., T+1, 7] (position, then quaternion) in the zone around `target_ee_pose`.

    position: metres, as a distance or one for each axis.
    rotation: radians; None where the rotation does not matter.
    """
    poses, goal = np.asarray(poses), np.asarray(target)
    if poses.shape[-1] != 7 or goal.shape != (7,):
        raise ValueError(f"poses have 7 numbers, position and quaternion, not {poses.shape[-1]} and {goal.shape}")
    inside = near(poses[..., :3], goal[:3], position)
    return inside if rotation is None else inside & aligned(poses[..., 3:], goal[3:], rotation)


def at_least(signal: np.ndarray, level: float) -> np.ndarray:
    """bool[..., T+1]: a signal, as `progress`, that has reached a level; NaN has not."""
    return np.asarray(signal) >= level
