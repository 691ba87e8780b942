"""The batched kinematics agree with MuJoCo's own and with plain numpy."""

import mujoco
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from referee.sim.batch import ARM, DOWN, HOME, PandaBatch
from referee.sim.kinematics import cross, hand_jacobian, joint_step, rotation_error
from referee.sim.scene import Scene, physics_xml

LOW, HIGH = np.array([0.28, -0.26, 0.01]), np.array([0.70, 0.26, 0.42])


@given(arrays(float, (4, 7, 3), elements=st.floats(-9, 9)), arrays(float, (4, 1, 3), elements=st.floats(-9, 9)))
def test_cross_is_the_cross_product(a: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_allclose(cross(a, b), np.cross(a, np.broadcast_to(b, a.shape)), atol=1e-12)


def test_home_holds_the_hand_down_over_the_workspace() -> None:
    sim = PandaBatch(Scene(), 1, num_threads=1)
    np.testing.assert_allclose(sim.tcp[0], [0.48, 0.0, 0.20], atol=1e-3)
    np.testing.assert_allclose(sim.hand[0], DOWN, atol=1e-3)


def test_jacobian_is_mujocos() -> None:
    sim = PandaBatch(Scene(), 3, num_threads=1)
    arm = HOME + np.random.default_rng(0).uniform(-0.3, 0.3, (3, 7))
    sim.place(np.arange(3), arm)
    ours = hand_jacobian(sim._axes[:, ARM], sim._anchors[:, ARM], sim.tcp)
    model = mujoco.MjModel.from_xml_string(physics_xml(Scene()))
    data = mujoco.MjData(model)
    for i in range(3):
        data.qpos[ARM] = arm[i]
        mujoco.mj_forward(model, data)
        linear, angular = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        mujoco.mj_jacSite(model, data, linear, angular, model.site("tcp").id)
        np.testing.assert_allclose(ours[i], np.concatenate([linear, angular])[:, ARM], atol=1e-10)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rotation_error_of_a_small_turn_is_that_turn(axis: int) -> None:
    angle = 0.01
    turn = np.zeros(3)
    turn[axis] = angle
    skew = np.array([[0, -turn[2], turn[1]], [turn[2], 0, -turn[0]], [-turn[1], turn[0], 0]])
    wanted = (np.eye(3) + skew) @ DOWN
    np.testing.assert_allclose(rotation_error(DOWN[None], wanted)[0], turn, atol=1e-4)


def test_joint_step_moves_the_hand_as_asked() -> None:
    """To first order the hand's motion is the Jacobian times the joints' motion; damping costs a few per cent."""
    sim = PandaBatch(Scene(), 1, num_threads=1)
    jacobian = hand_jacobian(sim._axes[:, ARM], sim._anchors[:, ARM], sim.tcp)
    wanted = np.array([[0.01, -0.02, 0.015, 0.0, 0.02, -0.01]])
    got = jacobian[0] @ joint_step(jacobian, wanted, np.zeros((1, 7)))[0]
    np.testing.assert_allclose(got, wanted[0], rtol=0.15, atol=5e-4)


def test_posture_pull_does_not_move_the_hand() -> None:
    sim = PandaBatch(Scene(), 1, num_threads=1)
    jacobian = hand_jacobian(sim._axes[:, ARM], sim._anchors[:, ARM], sim.tcp)
    pull = np.random.default_rng(0).uniform(-0.1, 0.1, (1, 7))
    step = joint_step(jacobian, np.zeros((1, 6)), pull)
    assert np.abs(jacobian[0] @ step[0]).max() < 0.003
    assert np.abs(step).max() > 0.01


def test_a_commanded_step_is_followed_straight_and_the_hand_stays_level() -> None:
    sim = PandaBatch(Scene(), 6, num_threads=1)
    steps = 0.02 * np.concatenate([np.eye(3), -np.eye(3)])
    start = sim.tcp.copy()
    for _ in range(5):
        sim.step(sim.hand_target(steps, LOW, HIGH), np.zeros(6))
    moved = sim.tcp - start
    along = np.einsum("ni,ni->n", moved, steps / 0.02)
    aside = np.linalg.norm(moved - along[:, None] * steps / 0.02, axis=1)
    assert (along > 0.06).all() and (along < 0.101).all()
    assert (aside < 0.05 * along).all()
    assert np.abs(rotation_error(sim.hand, DOWN)).max() < 0.02


def test_the_fingertips_never_leave_the_box() -> None:
    sim = PandaBatch(Scene(), 2, num_threads=1)
    away = np.array([[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]]) * 0.025
    for _ in range(60):
        sim.step(sim.hand_target(away, LOW, HIGH), np.zeros(2))
    assert (sim.tcp > LOW - 0.012).all()
    assert (sim.tcp < HIGH + 0.012).all()
