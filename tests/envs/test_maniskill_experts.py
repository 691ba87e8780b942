"""The scripted experts of ManiSkill's tasks solve them, and say where they cannot."""

import numpy as np
import pytest

from referee.config import ManiSkillEnvConfig
from referee.envs import make_vec
from referee.envs.maniskill.env import ManiSkillVectorEnv
from referee.envs.maniskill.experts import EXPERTS
from referee.envs.policies import make_policy
from referee.errors import RefereeError

pytestmark = [pytest.mark.slow, pytest.mark.maniskill]


@pytest.mark.parametrize("task", EXPERTS)
def test_experts_solve_their_tasks(task: str) -> None:
    """Eight episodes, with actions that also could turn the hand."""
    config = ManiSkillEnvConfig(task=task, num_envs=8, num_workers=2, control_mode="pd_ee_delta_pose")
    env = make_vec(config)
    env.reset(seed=11)
    expert = make_policy(env, "expert")
    for _ in range(config.max_episode_steps):
        *_, truncated, info = env.step(expert())
    env.close()
    assert truncated.all()
    assert info["final_info"]["success"].sum() >= 7


def test_an_expert_needs_no_states_of_the_policy_and_its_noise_has_a_seed() -> None:
    env = make_vec(
        ManiSkillEnvConfig(
            num_envs=1, num_workers=1, control_mode="pd_ee_delta_pos", obs_mode="rgb", image_size=64,
            cameras=("front",), shader="unlit", light_scene=True,
        )
    )  # fmt: skip
    env.reset(seed=3)
    still = make_policy(env, "expert")()
    first, again, other = (make_policy(env, "expert", noise=0.1, seed=seed)() for seed in (1, 1, 2))
    env.close()
    assert still.shape == (1, 4) and still[0, 3] == 1.0  # the hand goes down with open fingers
    assert still[0, 2] < 0
    np.testing.assert_array_equal(first, again)
    assert (first != other).any() and (first != still).any() and np.abs(first).max() <= 1.0


@pytest.mark.parametrize(
    ("task", "mode", "said"),
    [
        ("StackCube-v1", "pd_ee_delta_pos", "PickCube-v1, PushCube-v1 have a scripted expert, StackCube-v1 has none"),
        ("PickCube-v1", "pd_joint_delta_pos", "control_mode is pd_joint_delta_pos: set it to pd_ee_delta_pos"),
    ],
)
def test_where_there_is_no_expert_it_is_said(task: str, mode: str, said: str) -> None:
    env = make_vec(ManiSkillEnvConfig(task=task, num_envs=1, num_workers=1, control_mode=mode))
    with pytest.raises(RefereeError, match=said):
        make_policy(env, "expert")
    env.close()


def test_actions_are_scaled_but_a_gripper_is_not() -> None:
    """With `action_scale` 0.3 an action of 1 is what 0.3 was; the gripper still opens and closes fully."""
    states = {}
    for scale, push in ((1.0, 0.3), (0.3, 1.0)):
        config = ManiSkillEnvConfig(
            num_envs=1, num_workers=1, control_mode="pd_ee_delta_pos", max_episode_steps=9, action_scale=scale
        )
        env = make_vec(config)
        env.reset(seed=3)
        for _ in range(6):
            observation, *_ = env.step(np.array([[push, -push, 0.0, -1.0]]))
        states[scale] = observation["states"].copy()
        env.close()
    np.testing.assert_allclose(states[1.0], states[0.3], atol=1e-5)


def test_the_expert_solves_the_task_with_scaled_actions_too() -> None:
    env = make_vec(
        ManiSkillEnvConfig(
            num_envs=4, num_workers=2, control_mode="pd_ee_delta_pos", action_scale=0.3, success="visible"
        )
    )
    env.reset(seed=0)
    expert = make_policy(env, "expert")
    truncated = np.zeros(4, bool)
    while not truncated.any():
        *_, truncated, info = env.step(expert())
    assert info["final_info"]["success"].all()
    env.close()


def test_every_second_episode_aims_beside_its_goal() -> None:
    """Near misses: the cube is carried to where it was aimed, so some episodes end just beside the goal."""
    env = make_vec(ManiSkillEnvConfig(num_envs=12, num_workers=2, control_mode="pd_ee_delta_pos", success="visible"))
    assert isinstance(env, ManiSkillVectorEnv)
    ends = []
    for miss in (0.0, 0.1):
        env.reset(seed=0)
        expert = make_policy(env, "expert", miss=miss)
        for _ in range(env.max_episode_steps - 1):
            env.step(expert())
        states = env.true_states()[:, env.proprio_size :]
        distance = np.linalg.norm(states[:, 8:11] - states[:, 11:14], axis=1)
        ends.append(distance)
    aimed, missed = ends
    assert (aimed < 0.025).all()
    assert 3 <= (missed > 0.025).sum() <= 9 and missed.max() < 0.12
    env.close()
