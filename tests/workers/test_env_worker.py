"""The env worker counts episodes rightly, clips actions, and resumes exactly."""

import numpy as np

from referee.config import PandaEnvConfig
from referee.envs import make_vec
from referee.envs.policies import make_policy
from referee.workers.env import EnvWorker


def worker(num_envs: int = 3, horizon: int = 4, seed: int = 0) -> EnvWorker:
    return EnvWorker(make_vec(PandaEnvConfig(task="Reach", num_envs=num_envs, max_episode_steps=horizon)), seed=seed)


def test_actions_are_clipped_before_they_are_sent() -> None:
    one, two = worker(), worker()
    for _ in range(3):
        one.step(np.full((3, 4), 5.0))
        two.step(np.ones((3, 4)))
    np.testing.assert_array_equal(one.observation["states"], two.observation["states"])


def test_statistics_are_those_of_finished_episodes() -> None:
    env = worker(num_envs=8, horizon=20)
    expert = make_policy(env.env, "expert")
    rewards, once, last = np.zeros(8), np.zeros(8, bool), np.zeros(8, bool)
    for step in range(20):
        _, paid, _, _, info = env.step(expert())
        last = info["final_info"]["success"] if step == 19 else info["success"]
        rewards += paid
        once |= last
    found = env.statistics()
    assert found["episode_length"] == 20
    assert found["return"] == np.float64(rewards.mean())
    assert found["success_once"] == once.mean() == 1.0
    assert found["success_at_end"] == last.mean()
    assert env.statistics() == {}


def test_a_restored_worker_goes_on_exactly_also_in_its_counts() -> None:
    env = worker(horizon=6)
    actions = np.random.default_rng(0).uniform(-1, 1, (10, 3, 4))
    for each in actions[:3]:
        env.step(each)
    saved = env.save_state()
    other = worker(horizon=6, seed=77)
    other.restore_state(saved)
    for each in actions[3:]:
        env.step(each)
        other.step(each)
    np.testing.assert_array_equal(env.observation["states"], other.observation["states"])
    assert env.statistics() == other.statistics() != {}
