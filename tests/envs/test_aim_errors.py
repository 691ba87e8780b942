"""Scripted experts that aim beside the goal in every second episode."""

import numpy as np
import pytest

from referee.config import PandaEnvConfig
from referee.envs import make_vec
from referee.envs.panda.experts import AimErrors
from referee.envs.policies import make_policy


def test_offsets_are_drawn_once_an_episode() -> None:
    errors = AimErrors(1000, 0.1, seed=4)
    first = errors.offsets(np.zeros(1000, int)).copy()
    lengths = np.linalg.norm(first, axis=1)
    assert lengths.max() <= 0.1 and 0.45 < (lengths > 0).mean() < 0.55
    assert lengths[lengths > 0].mean() == pytest.approx(0.05, abs=0.005)  # evenly from 0 to 0.1
    np.testing.assert_array_equal(errors.offsets(np.ones(1000, int)), first)
    begins = np.arange(1000) % 2
    second = errors.offsets(begins).copy()
    assert (second[begins == 1] == first[begins == 1]).all() and (second[begins == 0] != first[begins == 0]).any()
    np.testing.assert_array_equal(AimErrors(1000, 0.1, seed=4).offsets(np.zeros(1000, int)), first)


def test_without_a_distance_the_goal_is_the_goal() -> None:
    goal = np.random.default_rng(0).normal(size=(5, 3))
    assert AimErrors(5, 0.0, seed=0).displaced(goal, np.zeros(5, int)) is goal


def test_nothing_is_aimed_into_the_table() -> None:
    goal = np.tile([0.5, 0.0, 0.03], (500, 1))
    aims = AimErrors(500, 0.2, seed=1).displaced(goal, np.zeros(500, int))
    assert aims[:, 2].min() >= 0.02 and aims[:, 2].max() > 0.1


@pytest.mark.parametrize("task", ["Reach", "PushCube", "PickCube"])
def test_an_expert_that_misses_ends_beside_the_goal(task: str) -> None:
    shares = []
    for miss in (0.0, 0.15):
        env = make_vec(PandaEnvConfig(task=task, num_envs=32))
        env.reset(seed=0)
        expert = make_policy(env, "expert", miss=miss)
        for _ in range(env.max_episode_steps):
            *_, info = env.step(expert())
        shares.append(info["final_info"]["success"].mean())
        env.close()
    assert shares[0] > 0.9 and 0.4 < shares[1] < 0.85
