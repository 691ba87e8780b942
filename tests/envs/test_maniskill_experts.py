"""The scripted experts of ManiSkill's tasks solve them, and say where they cannot."""

import numpy as np
import pytest

from referee.config import ManiSkillEnvConfig
from referee.envs import make_vec
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
