"""PPO: the loss by the textbook, the update's parts, and that it climbs."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from referee.config import PandaEnvConfig
from referee.config.learning import ActorConfig, OptimConfig, PPOConfig
from referee.envs import make_vec
from referee.learn.collector import Collector
from referee.rl.batch import Batch
from referee.rl.optim import DivergedError
from referee.rl.policy import Policy, PolicySpec
from referee.rl.ppo import PPO
from referee.rl.rollout import Rollout
from referee.workers.env import EnvWorker

SPEC = PolicySpec("mlp", state_size=4, image_size=0, views=0, action_size=2, hidden_dims=(8,))


def learner(config: PPOConfig | None = None, batch_size: int = 16, lr: float = 1e-3) -> PPO:
    torch.manual_seed(0)
    actor = ActorConfig(global_batch_size=batch_size, optim=OptimConfig(lr=lr))
    return PPO(Policy(SPEC), config or PPOConfig(), actor, torch.Generator().manual_seed(0))


def batch(n: int = 16, seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=draw)  # noqa: E731
    return Batch({"states": normal(n, 4)}, normal(n, 2), -2 + 0.3 * normal(n), normal(n), normal(n), normal(n))


def test_the_loss_is_the_textbooks() -> None:
    config = PPOConfig(clip_ratio=0.15, value_coef=0.7, entropy_coef=0.02, value_clip=0.1)
    ppo, data = learner(config), batch()
    loss, parts = ppo.loss(data)
    with torch.no_grad():
        mean = ppo.policy.mean(data.observations).numpy().astype(np.float64)
        values = ppo.policy.value(data.observations).numpy().astype(np.float64)
    std = np.exp(-0.5)
    log_prob = (-0.5 * ((data.actions.numpy() - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)).sum(axis=1)
    log_ratio = log_prob - data.log_probs.numpy()
    ratio = np.exp(log_ratio)
    adv = data.advantages.numpy().astype(np.float64)
    adv = (adv - adv.mean()) / (adv.std(ddof=1) + 1e-8)
    policy_loss = -np.minimum(ratio * adv, np.clip(ratio, 0.85, 1.15) * adv).mean()
    old = data.values.numpy()
    clipped = old + np.clip(values - old, -0.1, 0.1)
    value_loss = ((clipped - data.returns.numpy()) ** 2).mean()
    entropy = 2 * (0.5 * np.log(2 * np.pi * np.e) - 0.5)
    assert float(loss.detach()) == pytest.approx(policy_loss + 0.7 * value_loss - 0.02 * entropy, rel=1e-4)
    wanted = [
        float(loss.detach()),
        policy_loss,
        value_loss,
        (ratio - 1 - log_ratio).mean(),
        (np.abs(ratio - 1) > 0.15).mean(),
    ]
    np.testing.assert_allclose(list(ppo.row(parts).values()), wanted, rtol=1e-3, atol=1e-5)


def test_minibatches_cover_every_sample_once() -> None:
    ppo, data = learner(batch_size=5), batch(15)
    seen = torch.cat([part.returns for part in ppo._minibatches(data)])
    assert sorted(seen.tolist()) == sorted(data.returns.tolist())
    assert seen.tolist() != data.returns.tolist()


def collected(num_envs: int = 4, steps: int = 6, horizon: int = 4, log_std: float = -0.5) -> tuple[Rollout, Policy]:
    env = make_vec(PandaEnvConfig(task="Reach", num_envs=num_envs, max_episode_steps=horizon))
    torch.manual_seed(0)
    policy = Policy(PolicySpec.of(env, "mlp", (16,), log_std))
    rollout = Rollout(env, steps, policy.inputs)
    Collector(policy, seed=0).collect(EnvWorker(env, seed=0), rollout)
    return rollout, policy


def ready(policy: Policy, **config: object) -> PPO:
    return PPO(policy, replace(PPOConfig(), **config), ActorConfig(global_batch_size=12), torch.Generator())


def test_the_value_after_an_end_is_that_of_the_final_observation() -> None:
    """Not that of the next episode's first one, which stands in the next row."""
    rollout, policy = collected()
    assert [(final.step, final.env) for final in rollout.finals] == [(3, i) for i in range(4)]
    with torch.no_grad():
        made = ready(policy, gamma=1.0, gae_lambda=0.0).prepare(rollout)
        final_values = policy.value(
            {"states": torch.from_numpy(np.stack([final.observation["states"] for final in rollout.finals]))}
        )
    advantages = made.advantages.reshape(6, 4)
    values = made.values.reshape(6, 4)
    rewards = torch.from_numpy(rollout.rewards)
    torch.testing.assert_close(advantages[3], rewards[3] + final_values - values[3])
    torch.testing.assert_close(advantages[2], rewards[2] + values[3] - values[2])
    with torch.no_grad():
        last = policy.value({"states": torch.from_numpy(rollout.last["states"])})
    torch.testing.assert_close(advantages[5], rewards[5] + last - values[5])


def test_prepared_densities_are_those_of_the_acting_policy() -> None:
    rollout, policy = collected()
    made = ready(policy).prepare(rollout)
    log_probs, values = policy.evaluate(made.observations, made.actions)
    torch.testing.assert_close(made.log_probs, log_probs.detach())
    torch.testing.assert_close(made.values, values.detach())


def test_rollout_arrays_are_allocated_once() -> None:
    env = make_vec(PandaEnvConfig(task="Reach", num_envs=2, max_episode_steps=4))
    policy = Policy(PolicySpec.of(env, "mlp", (16,), -0.5))
    rollout, worker, roller = Rollout(env, 5, policy.inputs), EnvWorker(env, seed=0), Collector(policy, seed=0)
    before = [rollout.rewards.ctypes.data, rollout.observations["states"].ctypes.data]
    for _ in range(3):
        roller.collect(worker, rollout)
    assert [rollout.rewards.ctypes.data, rollout.observations["states"].ctypes.data] == before
    assert len(rollout.finals) in (2, 4)


def test_an_update_raises_the_density_of_good_actions() -> None:
    ppo, data = learner(PPOConfig(update_epochs=5, normalise_advantages=False, value_coef=0.0), lr=3e-3), batch(64)
    good = torch.where(data.actions[:, 0] > 0, 1.0, -1.0)
    with torch.no_grad():
        before, _ = ppo.policy.evaluate(data.observations, data.actions)
    data = replace(data, advantages=good, log_probs=before)
    for _ in range(20):
        loss, _ = ppo.loss(data)
        ppo.weights.grad.zero_()
        loss.backward()
        ppo.optimizer.step()
    with torch.no_grad():
        after, _ = ppo.policy.evaluate(data.observations, data.actions)
    assert ((after - before) * good).mean() > 0.02


def test_the_normaliser_learns_only_after_the_update() -> None:
    rollout, policy = collected()
    ppo = ready(policy)
    before = policy.norm.mean.clone()
    made = ppo.prepare(rollout)
    torch.testing.assert_close(policy.norm.mean, before)
    ppo.update(rollout)
    np.testing.assert_allclose(policy.norm.mean, made.observations["states"].double().mean(dim=0), rtol=1e-6)
    for keeps in ({"normalise_observations": False}, {"freeze_normaliser": True}):
        frozen = ready(policy, **keeps)
        before = policy.norm.mean.clone()
        frozen.update(rollout)
        torch.testing.assert_close(policy.norm.mean, before)


def test_one_flat_adam_is_adam_with_clipping_on_every_parameter() -> None:
    """A whole update against plain torch: the same minibatches, Adam per tensor, clip_grad_norm_."""
    rollout, policy = collected()
    twin = copy.deepcopy(policy)
    ours = PPO(policy, PPOConfig(update_epochs=3), ActorConfig(global_batch_size=12), torch.Generator().manual_seed(1))
    theirs = PPO(copy.deepcopy(twin), PPOConfig(), ActorConfig(global_batch_size=12), torch.Generator().manual_seed(1))
    ours.update(rollout)
    theirs.policy = twin
    adam = torch.optim.Adam(twin.parameters(), lr=3e-4, eps=1e-5)
    batch = theirs.prepare(rollout)
    for _ in range(3):
        for part in theirs._minibatches(batch):
            adam.zero_grad()
            theirs.loss(part)[0].backward()
            torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
            adam.step()
    for one, two in zip(policy.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_an_iteration_ends_where_the_policy_has_moved_too_far() -> None:
    rollout, policy = collected()
    assert ready(policy, target_kl=1e-9, update_epochs=50).update(rollout)["kl_stop"] == 1
    rollout, policy = collected()
    assert ready(policy, target_kl=1e9).update(rollout)["kl_stop"] == 0


def test_a_policy_with_little_noise_stays_within_the_trust_region() -> None:
    """Without one, the same learning rate moves it by many of its standard deviations."""
    moved = {}
    for target in (None, 0.01):
        rollout, policy = collected(log_std=-4.5)
        ppo = ready(policy, target_kl=target)
        observations = ppo.prepare(rollout).observations
        ppo.update(rollout)  # the normaliser learns for the first time
        for _ in range(3):
            with torch.no_grad():
                mean = policy.mean(observations)
            metrics = ppo.update(rollout)
            with torch.no_grad():
                deviations = (policy.mean(observations) - mean) / policy.log_std.exp()
            moved[target] = float(deviations.square().mean().sqrt())
    assert moved[0.01] < 0.1 and moved[None] > 0.2
    assert metrics["lr"] < 3e-4


def test_what_moved_far_too_far_is_undone_and_the_rate_falls() -> None:
    rollout, policy = collected()
    ppo = PPO(
        policy, PPOConfig(target_kl=0.01, update_epochs=8),
        ActorConfig(global_batch_size=12, optim=OptimConfig(lr=0.3)), torch.Generator().manual_seed(0),
    )  # fmt: skip
    before = {name: value.detach().clone() for name, value in policy.named_parameters()}
    metrics = ppo.update(rollout)
    assert metrics["kl_undone"] and metrics["kl_stop"] and ppo.trust.share == 0.5
    for name, value in policy.named_parameters():
        assert torch.equal(value, before[name]) != name.startswith("critic."), name
    assert ppo.update(rollout)["lr"] == pytest.approx(0.15)


def test_the_rate_grows_again_where_the_policy_hardly_moves() -> None:
    rollout, policy = collected()
    ppo = ready(policy, target_kl=1e3)
    ppo.trust.share = 0.5
    shares = [ppo.update(rollout)["lr"] / 3e-4 for _ in range(5)]
    np.testing.assert_allclose(shares, [0.5, 0.625, 0.78125, 0.9765625, 1.0])


def test_linear_schedule() -> None:
    rollout, policy = collected()
    actor = ActorConfig(global_batch_size=12, optim=OptimConfig(lr=1e-3, schedule="linear"))
    ppo = PPO(policy, PPOConfig(), actor, torch.Generator())
    assert ppo.update(rollout, progress=0.0)["lr"] == pytest.approx(1e-3)
    assert ppo.update(rollout, progress=0.75)["lr"] == pytest.approx(2.5e-4)


def test_a_critic_can_learn_alone() -> None:
    rollout, policy = collected()
    ppo = ready(policy)
    before = {name: value.detach().clone() for name, value in policy.named_parameters()}
    ppo.update(rollout, critic_only=True)
    for name, value in policy.named_parameters():
        assert torch.equal(value, before[name]) != name.startswith("critic."), name
    ppo.forget_moments()
    moments = [value for state in ppo.optimizer.state.values() for value in state.values()]
    assert moments and not any(value.any() for value in moments)
    ppo.update(rollout)
    assert not any(torch.equal(value, before[name]) for name, value in policy.named_parameters())


def test_a_bad_observation_is_named_and_the_policy_is_untouched() -> None:
    rollout, policy = collected()
    rollout.observations["states"][2, 3, 1] = np.nan
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    with pytest.raises(DivergedError, match="states of environment 3 at rollout step 2 is not finite"):
        ready(policy).update(rollout)
    for name, value in policy.state_dict().items():
        torch.testing.assert_close(value, before[name])


def test_a_bad_reward_is_named() -> None:
    rollout, policy = collected()
    rollout.rewards[1, 2] = np.inf
    with pytest.raises(DivergedError, match="reward of environment 2 at rollout step 1 is not finite"):
        ready(policy).update(rollout)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_gradient_that_overflows_stops_before_the_step() -> None:
    rollout, policy = collected()
    rollout.rewards[:] = 3e38
    before = {name: value.clone() for name, value in policy.named_parameters()}
    with pytest.raises(DivergedError, match=r"not finite: lower actor\.optim\.lr"):
        ready(policy).update(rollout)
    for name, value in policy.named_parameters():
        torch.testing.assert_close(value, before[name])
