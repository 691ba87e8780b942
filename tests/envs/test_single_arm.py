"""One arm as a plain Gymnasium environment."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import check_env

import referee.envs
from referee.config import PandaEnvConfig


def test_gymnasium_has_no_complaints() -> None:
    env = gym.make("referee/Reach-v0", render_mode="rgb_array")
    check_env(env.unwrapped)
    env.close()


def test_it_is_the_vector_env_of_one() -> None:
    """The same states and rewards, and at the end the episode's own last state and picture."""
    env = gym.make("referee/PickCube-v0", max_episode_steps=None, disable_env_checker=True).unwrapped
    assert isinstance(env, referee.envs.SingleArm)
    twin = referee.envs.make_vec(PandaEnvConfig(num_envs=1, num_threads=1))
    state, _ = env.reset(seed=5)
    observation, _ = twin.reset(seed=5)
    assert np.array_equal(state, observation["states"][0])
    random = np.random.default_rng(0)
    for step in range(50):
        action = random.uniform(-1, 1, 4).astype(np.float32)
        state, reward, _, truncated, info = env.step(action)
        observation, rewards, _, _, about = twin.step(action[None])
        last = step == 49
        expected = about["final_obs"][0]["states"] if last else observation["states"][0]
        assert np.array_equal(state, expected) and reward == rewards[0] and truncated == last
        assert info["success"] == bool((about["final_info"] if last else about)["success"][0])
    assert np.array_equal(env.render(), twin.render_cameras(final=True)["main_images"][0])
    env.close()
    twin.close()
