"""Poses: conversions agree with each other, and what cannot be meant is refused."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from referee.robots.poses import (
    DOWN,
    Pose,
    PoseError,
    checked_pose,
    quaternion_from_rotation,
    rotation_from_quaternion,
    rotation_from_rpy,
    rotation_from_vector,
    rpy_from_rotation,
)

angle = st.floats(-3.1, 3.1)


def test_by_hand() -> None:
    np.testing.assert_allclose(rotation_from_rpy(np.array([math.pi, 0, 0])), DOWN, atol=1e-12)
    quarter = rotation_from_rpy(np.array([0, 0, math.pi / 2]))  # x goes to y
    np.testing.assert_allclose(quarter @ [1, 0, 0], [0, 1, 0], atol=1e-12)
    np.testing.assert_allclose(quaternion_from_rotation(quarter), [0, 0, math.sqrt(0.5), math.sqrt(0.5)], atol=1e-12)
    both = rotation_from_rpy(np.array([math.pi / 2, 0, math.pi / 2]))  # first about x, then about the fixed z
    np.testing.assert_allclose(both @ [0, 1, 0], [0, 0, 1], atol=1e-12)
    np.testing.assert_allclose(both @ [1, 0, 0], [0, 1, 0], atol=1e-12)


@given(st.tuples(angle, st.floats(-1.5, 1.5), angle))
def test_conversions_are_inverse(rpy: tuple[float, float, float]) -> None:
    rotation = rotation_from_rpy(np.array(rpy))
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(rotation_from_rpy(rpy_from_rotation(rotation)), rotation, atol=1e-9)
    np.testing.assert_allclose(rotation_from_quaternion(quaternion_from_rotation(rotation)), rotation, atol=1e-9)


def test_a_right_angle_of_pitch_still_converts() -> None:
    rotation = rotation_from_rpy(np.array([0.3, math.pi / 2, 0.5]))
    np.testing.assert_allclose(rotation_from_rpy(rpy_from_rotation(rotation)), rotation, atol=1e-6)


def test_moved_and_apart() -> None:
    pose = Pose.from_xyzrpy([0.5, 0.0, 0.2, -math.pi, 0.0, 0.0])
    other = pose.moved(np.array([0.03, 0.0, 0.04]), np.array([0.0, 0.0, 0.25]))
    metres, radians = pose.apart(other)
    assert metres == pytest.approx(0.05) and radians == pytest.approx(0.25)
    np.testing.assert_allclose(rotation_from_vector(np.array([0, 0, 0.25])) @ pose.rotation, other.rotation)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([500, 0, 100, -3.14, 0, 0], "millimetres"),
        ([50, 0, 10, -3.14, 0, 0], "is not in metres: .* centimetres by 100"),
        ([0.5, 0, 0.1, -180, 0, 0], "degrees"),
        ([0.5, 0, 0.1, 1, 0, 0, 0], "7 numbers"),
        ([0.5, 0, 0.1, 0.6, 0.8, 0.0], "quaternion"),
        ([0.5, 0, 0.1], "six finite numbers"),
        ([0.5, 0, float("nan"), -3.14, 0, 0], "six finite numbers"),
        ([1.2, 0.5, 0.1, -3.14, 0, 0], "from the arm's shoulder"),
        ([0.5, 0, 0.1, 0, 0, 0], "fingers point up"),
    ],
)
def test_what_can_hardly_be_meant_is_refused(values: list[float], said: str) -> None:
    with pytest.raises(PoseError, match=said):
        checked_pose(values, "target_ee_pose")


def test_the_documents_pose_is_taken() -> None:
    pose = checked_pose([0.5, 0.0, 0.1, -3.14, 0.0, 0.0], "target_ee_pose")
    assert pose.position.tolist() == [0.5, 0.0, 0.1]
    assert pose.apart(Pose(pose.position, DOWN))[1] < 0.002
