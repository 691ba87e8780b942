"""Advantages against Stable-Baselines3, against a slow reference, and by hand."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.buffers import RolloutBuffer

from referee.rl.gae import gae


def random_rollout(seed: int, steps: int = 12, envs: int = 5, end: float = 0.2) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    terminated = random.random((steps, envs)) < end / 2
    return {
        "rewards": random.normal(size=(steps, envs)).astype(np.float32),
        "values": random.normal(size=(steps, envs)).astype(np.float32),
        "next_values": random.normal(size=(steps, envs)).astype(np.float32),
        "terminated": terminated,
        "truncated": (random.random((steps, envs)) < end / 2) & ~terminated,
    }


def consistent(rollout: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Where no episode ends, the next value is the value of the next row."""
    ended = rollout["terminated"] | rollout["truncated"]
    following = rollout["next_values"].copy()
    following[:-1] = np.where(ended[:-1], following[:-1], rollout["values"][1:])
    return {**rollout, "next_values": following}


@pytest.mark.parametrize("seed", range(5))
def test_the_numbers_of_stable_baselines3(seed: int) -> None:
    """SB3 adds γ·V(final) to the reward of a truncated step, and then knows only of `done`."""
    rollout = consistent(random_rollout(seed))
    steps, envs = rollout["rewards"].shape
    gamma, gae_lambda = 0.97, 0.9
    buffer = RolloutBuffer(
        steps, spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (1,)), "cpu", gae_lambda=gae_lambda, gamma=gamma, n_envs=envs
    )
    done = rollout["terminated"] | rollout["truncated"]
    rewards = rollout["rewards"] + gamma * rollout["next_values"] * rollout["truncated"]
    starts = np.concatenate([np.zeros((1, envs), bool), done[:-1]])
    for t in range(steps):
        values = torch.from_numpy(rollout["values"][t])
        zeros = np.zeros((envs, 1), np.float32)
        buffer.add(zeros, zeros, rewards[t], starts[t], values, torch.zeros(envs))
    buffer.compute_returns_and_advantage(torch.from_numpy(rollout["next_values"][-1]), done[-1])
    advantages, returns = gae(**rollout, gamma=gamma, gae_lambda=gae_lambda)
    np.testing.assert_allclose(advantages, buffer.advantages, atol=2e-6)
    np.testing.assert_allclose(returns, buffer.returns, atol=2e-6)


def slowly(rollout: dict[str, np.ndarray], gamma: float, gae_lambda: float, kind: str) -> np.ndarray:
    """The definition: a discounted sum of temporal differences up to the end of the episode."""
    steps, envs = rollout["rewards"].shape
    out = np.zeros((steps, envs))
    for i in range(envs):
        for t in range(steps):
            weight = 1.0
            for k in range(t, steps):
                cut, over = rollout["truncated"][k, i], rollout["terminated"][k, i]
                counts = {"standard": not over, "always": True, "never": not (over or cut)}[kind]
                future = gamma * rollout["next_values"][k, i] * counts
                out[t, i] += weight * (rollout["rewards"][k, i] + future - rollout["values"][k, i])
                weight *= gamma * gae_lambda
                if rollout["terminated"][k, i] or rollout["truncated"][k, i]:
                    break
    return out


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 10_000), st.floats(0.5, 1.0), st.floats(0.0, 1.0), st.sampled_from(["standard", "always", "never"])
)
def test_the_definition(seed: int, gamma: float, gae_lambda: float, kind: str) -> None:
    rollout = random_rollout(seed, steps=7, envs=2, end=0.5)
    advantages, returns = gae(**rollout, gamma=gamma, gae_lambda=gae_lambda, bootstrap_type=kind)
    np.testing.assert_allclose(advantages, slowly(rollout, gamma, gae_lambda, kind), atol=1e-4)
    np.testing.assert_allclose(returns, advantages + rollout["values"], atol=1e-6)


def test_by_hand() -> None:
    """One env, three steps, cut off after the second: δ = [1 + .9·2 − 1, 0 + .9·4 − 2, 2 + .9·3 − 5]."""
    column = lambda *x: np.array(x, np.float32)[:, None]  # noqa: E731
    advantages, _ = gae(
        column(1, 0, 2),
        column(1, 2, 5),
        column(2, 4, 3),
        np.zeros((3, 1), bool),
        np.array([[False], [True], [False]]),
        gamma=0.9,
        gae_lambda=0.5,
    )
    np.testing.assert_allclose(advantages[:, 0], [1.8 + 0.45 * 1.6, 1.6, -0.3], rtol=1e-6)


def test_termination_has_no_future_but_truncation_has() -> None:
    ones = np.ones((1, 1), np.float32)
    ended, not_ended = np.array([[True]]), np.array([[False]])
    kwargs = {"gamma": 0.5, "gae_lambda": 1.0}
    assert gae(ones, 0 * ones, 4 * ones, ended, not_ended, **kwargs)[0][0, 0] == 1.0
    assert gae(ones, 0 * ones, 4 * ones, not_ended, ended, **kwargs)[0][0, 0] == 3.0
    assert gae(ones, 0 * ones, 4 * ones, ended, not_ended, bootstrap_type="always", **kwargs)[0][0, 0] == 3.0
    assert gae(ones, 0 * ones, 4 * ones, not_ended, ended, bootstrap_type="never", **kwargs)[0][0, 0] == 1.0
