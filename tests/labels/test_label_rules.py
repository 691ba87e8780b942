"""Rules against a slow reading, and against angles and distances computed by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from referee.labels.rules import aligned, at_least, hold, near, near_pose


def test_the_count_starts_again_when_the_arm_leaves() -> None:
    zone = np.array([0, 1, 1, 1, 0, 1, 1, 1, 1], bool)
    assert hold(zone, 3).tolist() == [False, False, False, True, False, False, False, True, True]
    assert hold(zone, 1).tolist() == zone.tolist()
    assert not hold(zone, 5).any()
    with pytest.raises(ValueError, match="at least 1"):
        hold(zone, 0)


@given(hnp.arrays(bool, st.tuples(st.integers(1, 3), st.integers(1, 30))), st.integers(1, 6))
def test_hold_equals_a_counter(zones: np.ndarray, steps: int) -> None:
    expected = np.zeros_like(zones)
    for row, zone in enumerate(zones):
        counter = 0
        for index, inside in enumerate(zone):
            counter = counter + 1 if inside else 0
            expected[row, index] = counter >= steps
    np.testing.assert_array_equal(hold(zones, steps), expected)


def test_near_is_a_ball_or_a_box() -> None:
    positions = np.array([[0.3, 0.4, 0.0], [0.5, 0.0, 0.0], [0.3, 0.4, 0.1]])
    assert near(positions, [0, 0, 0], 0.5).tolist() == [True, True, False]
    assert near(positions, [0, 0, 0], [0.4, 0.4, 0.1]).tolist() == [True, False, True]
    assert near(np.zeros((2, 5, 3)), [1, 0, 0], 1.0).shape == (2, 5)


def test_rotations_are_compared_by_their_angle() -> None:
    half = math.radians(30) / 2
    turned = np.array([math.cos(half), 0, 0, math.sin(half)])  # 30° about z
    quaternions = np.stack([turned, -turned, 5 * turned])
    assert aligned(quaternions, [1, 0, 0, 0], math.radians(30.01)).all()
    assert not aligned(quaternions, [1, 0, 0, 0], math.radians(29.99)).any()
    with pytest.raises(ValueError, match="length 0"):
        aligned(np.zeros((1, 4)), [1, 0, 0, 0], 1)


def test_a_pose_is_near_in_both_or_in_position_alone() -> None:
    poses = np.array([[0, 0, 0.009, 1, 0, 0, 0], [0, 0, 0.011, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0]])
    target = [0, 0, 0, 1, 0, 0, 0]
    assert near_pose(poses, target, position=0.01, rotation=0.1).tolist() == [True, False, False]
    assert near_pose(poses, target, position=0.01, rotation=None).tolist() == [True, False, True]
    with pytest.raises(ValueError, match="7 numbers"):
        near_pose(poses[:, :6], target, position=0.01, rotation=None)


def test_a_signal_reaches_its_level() -> None:
    assert at_least(np.array([0.1, 0.9, np.nan, 1.0]), 0.9).tolist() == [False, True, False, True]
