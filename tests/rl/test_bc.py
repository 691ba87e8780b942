"""Behaviour cloning: it fits, touches only the actor, and starts a policy that succeeds."""

import numpy as np
import pytest
import torch

from referee.config import PandaEnvConfig
from referee.config.learning import ActorConfig, BCConfig, PPOConfig
from referee.envs import make_vec
from referee.envs.policies import demonstrations
from referee.errors import RefereeError
from referee.learn.roll_out import roll_out
from referee.rl.bc import clone
from referee.rl.policy import Player, Policy, PolicySpec
from referee.rl.ppo import PPO

SPEC = PolicySpec("mlp", state_size=3, image_size=0, views=0, action_size=2, hidden_dims=(32,))


def test_a_linear_rule_is_learned() -> None:
    torch.manual_seed(0)
    states = np.random.default_rng(0).normal(3.0, 2.0, (512, 3)).astype(np.float32)
    actions = (states @ np.array([[0.1, 0.0], [0.0, -0.1], [0.05, 0.05]])).astype(np.float32)
    policy = Policy(SPEC)
    critic = [value.clone() for value in policy.critic.parameters()]
    spread = policy.log_std.clone()
    policy.norm.update(torch.from_numpy(states))
    shown = {"states": torch.from_numpy(states)}
    losses = clone(policy, shown, torch.from_numpy(actions), BCConfig(episodes=1, epochs=60), torch.Generator())
    assert losses[-1] < 0.02 * losses[0]
    assert np.abs(policy.act({"states": states}) - actions).mean() < 0.05
    assert all(torch.equal(a, b) for a, b in zip(critic, policy.critic.parameters(), strict=True))
    assert torch.equal(spread, policy.log_std)
    assert policy.norm.count == 512


def test_no_demonstrations_is_an_error() -> None:
    with pytest.raises(RefereeError, match="no demonstrations"):
        clone(Policy(SPEC), {"states": torch.zeros(0, 3)}, torch.zeros(0, 2), BCConfig(), torch.Generator())


def test_demonstrations_are_whole_episodes_with_the_actions_that_were_meant() -> None:
    env = make_vec(PandaEnvConfig(task="Reach", num_envs=4, max_episode_steps=6))
    observations, actions = demonstrations(env, 6, noise=0.5, seed=0)
    assert observations["states"].shape == (36, 31) and actions.shape == (36, 4)
    clean, _ = demonstrations(env, 6, noise=0.0, seed=0)
    np.testing.assert_array_equal(observations["states"][:4], clean["states"][:4])  # the same start
    assert not np.array_equal(observations["states"][8:12], clean["states"][8:12])  # another way


def test_a_cloned_policy_reaches() -> None:
    torch.manual_seed(0)
    env = make_vec(PandaEnvConfig(task="Reach", num_envs=32))
    observations, actions = demonstrations(env, 32, noise=0.3, seed=5)
    policy = Policy(PolicySpec.of(env, "mlp", (64, 64), -0.5))
    shown = policy.tensors(observations)
    policy.norm.update(shown["states"])
    lesson = BCConfig(episodes=32, epochs=15, batch_size=512)
    clone(policy, shown, torch.from_numpy(actions), lesson, torch.Generator())
    player = Player(policy, env)
    assert roll_out(env, player, 32, seed=900, observe=player.see).rate().share > 0.8


def test_a_learner_goes_on_from_a_cloned_policy() -> None:
    """Cloning leaves the gradients where the learner looks for them."""
    policy = Policy(SPEC)
    ppo = PPO(policy, PPOConfig(), ActorConfig(global_batch_size=4), torch.Generator())
    clone(policy, {"states": torch.ones(4, 3)}, torch.ones(4, 2), BCConfig(episodes=1, epochs=1), ppo.generator)
    assert ppo.weights.grad is not None
    ppo.weights.grad.fill_(1.0)
    assert all((parameter.grad == 1.0).all() for parameter in policy.parameters())
