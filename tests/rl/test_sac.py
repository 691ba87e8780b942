"""SAC against hand-made numbers and references: densities, targets, gradients, temperature, and a task it solves."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from referee.config.learning import ActorConfig, DemosConfig, OptimConfig, SACConfig
from referee.rl.critics import Critics
from referee.rl.policy import PolicySpec
from referee.rl.replay import Replay, Transitions
from referee.rl.sac import SAC, critic_loss, random_shift
from referee.rl.squashed import SquashedPolicy, log_density

SPEC = PolicySpec("mlp", state_size=3, image_size=0, views=0, action_size=2, hidden_dims=(16, 16), squashed=True)
PIXELS = PolicySpec("cnn", state_size=4, image_size=64, views=2, action_size=2, hidden_dims=(8,), proprio_size=2,
                    squashed=True)  # fmt: skip


def learner(seed: int = 0, spec: PolicySpec = SPEC, batch: int = 32, lr: float = 1e-3, **config: object) -> SAC:
    torch.manual_seed(seed)
    actor = ActorConfig(global_batch_size=batch, optim=OptimConfig(lr=lr, clip_grad=10.0))
    return SAC(SquashedPolicy(spec), SACConfig(**config), actor, torch.Generator().manual_seed(seed))  # type: ignore[arg-type]


def transitions(count: int = 32, seed: int = 0) -> Transitions:
    random = torch.Generator().manual_seed(seed)
    states = [{"states": torch.randn(count, 3, generator=random)} for _ in range(2)]
    actions = torch.rand(count, 2, generator=random) * 2 - 1
    rewards = torch.randn(count, generator=random)
    discounts = torch.where(torch.rand(count, generator=random) < 0.3, 0.0, 0.9)
    return Transitions(states[0], actions, rewards, states[1], discounts, torch.zeros(count, dtype=torch.bool))


def test_the_log_density_is_that_of_torch() -> None:
    random = torch.Generator().manual_seed(0)
    mean, log_std, noise = (torch.randn(50, 4, generator=random) for _ in range(3))
    free = mean + log_std.exp() * noise
    squashed = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean.double(), log_std.double().exp()),
        torch.distributions.transforms.TanhTransform(cache_size=1),
    )
    wanted = squashed.log_prob(torch.tanh(free.double())).sum(dim=1)
    near = free.abs().amax(dim=1) < 5  # beyond, the reference's own atanh has lost its digits
    torch.testing.assert_close(log_density(free, noise, log_std)[near].double(), wanted[near], atol=1e-3, rtol=1e-3)
    assert torch.isfinite(log_density(torch.full((1, 4), 40.0), noise[:1], log_std[:1])).all()


@pytest.mark.parametrize("layer_norm", [True, False])
def test_stacked_critics_are_as_many_nets(layer_norm: bool) -> None:
    torch.manual_seed(0)
    critics = Critics(3, 5, (8, 6), layer_norm=layer_norm)
    seen, actions = torch.randn(7, 3), torch.randn(7, 2)
    for member in range(3):
        layers: list[nn.Module] = []
        for i, size in enumerate((8, 6, 1)):
            linear = nn.Linear(critics.weights[i].shape[1], size)
            linear.weight.data, linear.bias.data = (
                critics.weights[i][member].T.detach(),
                critics.biases[i][member, 0].detach(),
            )
            layers += [linear] if i == 2 else [linear, *([nn.LayerNorm(size)] if layer_norm else []), nn.ReLU()]
        alone = nn.Sequential(*layers)(torch.cat([seen, actions], dim=1))[:, 0]
        torch.testing.assert_close(critics(seen, actions)[member], alone)
        torch.testing.assert_close(critics(seen, actions, torch.tensor([member]))[0], alone)


@pytest.mark.parametrize("backup", [True, False])
def test_the_target_is_the_reward_and_the_least_of_some_critics(backup: bool) -> None:
    sac, batch = learner(critics=4, critic_subset=2, backup_entropy=backup, initial_temperature=0.3), transitions()
    state = sac.generator.get_state()
    found = sac.target(batch)
    sac.generator.set_state(state)
    with torch.no_grad():
        seen = sac.policy.seen(batch.after)
        actions, log_probs = sac.policy.sample(seen, torch.randn(32, 2, generator=sac.generator))
        members = torch.randperm(4, generator=sac.generator)[:2]
        least = sac.targets(seen, actions)[members].min(dim=0).values
    wanted = batch.rewards + batch.discounts * (least - (0.3 * log_probs if backup else 0.0))
    torch.testing.assert_close(found, wanted)


def test_the_critics_go_down_and_their_targets_follow() -> None:
    sac, batch = learner(tau=0.1), transitions()
    before = [weights.detach().clone() for weights in sac.targets.parameters()]
    first = float(sac.update_critics(batch)[2]["critic_loss"])
    for old, new, now in zip(before, sac.critics.parameters(), sac.targets.parameters(), strict=True):
        torch.testing.assert_close(now, 0.9 * old + 0.1 * new.detach())
    for _ in range(200):
        last = float(sac.update_critics(batch)[2]["critic_loss"])
    assert last < 0.5 * first


def test_the_policy_goes_where_the_critics_say_and_leaves_them_alone() -> None:
    sac, batch = learner(lr=0.01, initial_temperature=1e-6, learn_temperature=False), transitions()
    seen = sac.policy.seen(batch.before)
    before = [weights.detach().clone() for weights in sac.critics.parameters()]

    def value() -> float:
        with torch.no_grad():
            return float(sac.critics(seen, sac.policy.mean(batch.before)).mean())

    first = value()
    for _ in range(100):
        sac.update_policy(seen, batch, torch.zeros(32))
    with torch.no_grad():
        spread = sac.critics(seen, batch.actions).mean(dim=0).std()
    assert value() > first + 0.5 * spread
    assert all((old == new).all() for old, new in zip(before, sac.critics.parameters(), strict=True))


@pytest.mark.parametrize("target", [-9.0, 9.0])
def test_the_temperature_follows_the_entropy(target: float) -> None:
    """The gradient is that of temperature · (entropy − target), as in the paper; the step goes against it."""
    sac, batch = learner(initial_temperature=0.5, target_entropy=target), transitions()
    entropy = float(sac.update_policy(sac.policy.seen(batch.before), batch, torch.zeros(32))["entropy"])
    log_temperature = torch.tensor(math.log(0.5), requires_grad=True)
    (log_temperature.exp() * (entropy - target)).backward()
    torch.testing.assert_close(sac.log_temperature.grad, log_temperature.grad)
    assert (sac.temperature < 0.5) == (entropy > target)


def test_imitation_pulls_the_mean_to_what_was_shown() -> None:
    sac, batch = learner(bc_coef=50.0, demos=DemosConfig(path="x")), transitions()
    shown = replace(batch, good=torch.arange(32) >= 16)
    seen = sac.policy.seen(batch.before)
    for _ in range(400):
        sac.update_policy(seen, shown, torch.full((32,), 1e9))
    miss = (sac.policy.mean(batch.before) - batch.actions).abs().detach()
    assert miss[16:].mean() < 0.5 * miss[:16].mean()


@pytest.mark.parametrize("layer_norm", [True, False])
@pytest.mark.parametrize("bc_coef", [0.0, 0.7])
@pytest.mark.parametrize("hidden", [(16, 16), (9,), (8, 7, 6)])
def test_by_hand_equals_autograd(layer_norm: bool, bc_coef: float, hidden: tuple[int, ...]) -> None:
    spec = replace(SPEC, hidden_dims=hidden)
    sac = learner(spec=spec, critics=3, layer_norm=layer_norm, bc_coef=bc_coef, initial_temperature=0.3)
    batch = replace(transitions(), good=torch.arange(32) % 3 == 0)
    target, noise = sac.target(batch), torch.randn(32, 2, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        sac.policy.actor[-1].bias[2] = -30.0  # a spread at its limit has no gradient
    weights = (*sac.critics.parameters(), *sac.policy.actor.parameters())

    def gradients() -> list[torch.Tensor]:
        found = [each.grad.clone() for each in weights if each.grad is not None]
        for each in weights:
            assert each.grad is not None
            each.grad.zero_()
        return found

    by_hand = sac._by_hand
    assert by_hand is not None
    seen = sac.policy.seen(batch.before)
    said = sac.critics(seen, batch.actions)
    critic_loss(said, target).backward()
    wanted = gradients()
    _, same, loss = by_hand.critics(batch, target)
    torch.testing.assert_close([same, loss], [said.detach(), critic_loss(said, target).detach()])
    torch.testing.assert_close(gradients(), wanted)
    worth = said.detach().mean(dim=0)
    sac.critics.requires_grad_(False)
    loss, entropy = sac.policy_loss(seen, batch, worth, noise)
    loss.backward()
    wanted = gradients()
    sac.critics.requires_grad_(True)
    found, same = by_hand.policy(seen, batch, worth, noise)
    torch.testing.assert_close([found, same], [loss.detach(), entropy])
    torch.testing.assert_close(gradients(), wanted)


def test_all_views_of_a_sample_move_alike_and_repeat_their_edge() -> None:
    images = torch.arange(2 * 2 * 6 * 6 * 3, dtype=torch.int64).reshape(2, 2, 6, 6, 3) % 251
    moved = random_shift(images.to(torch.uint8), 2, torch.Generator().manual_seed(3))
    assert moved.shape == images.shape
    steps = torch.arange(6)

    def shifted(image: torch.Tensor, dy: int, dx: int) -> torch.Tensor:
        return image[(steps + dy).clamp(0, 5)][:, (steps + dx).clamp(0, 5)]

    places = [(dy, dx) for dy in range(-2, 3) for dx in range(-2, 3)]
    for sample, original in zip(moved, images, strict=True):
        assert any(all((sample[v] == shifted(original[v], *place)).all() for v in range(2)) for place in places)
    assert random_shift(images, 0, torch.Generator()) is images


def test_on_images_the_critics_teach_the_encoder() -> None:
    sac = learner(spec=PIXELS, batch=4)
    random = np.random.default_rng(0)

    def observation() -> dict[str, torch.Tensor]:
        return {
            "states": torch.from_numpy(random.standard_normal((4, 4), np.float32)),
            "main_images": torch.from_numpy(random.integers(256, size=(4, 64, 64, 3), dtype=np.uint8)),
            "extra_view_images": torch.from_numpy(random.integers(256, size=(4, 1, 64, 64, 3), dtype=np.uint8)),
        }

    batch = Transitions(
        observation(), torch.zeros(4, 2), torch.ones(4), observation(), torch.ones(4), torch.ones(4).bool()
    )
    assert sac.policy.encoder is not None
    before = [weights.detach().clone() for weights in sac.policy.encoder.parameters()]
    seen, worth, _ = sac.update_critics(batch)
    moved = [not torch.equal(old, new) for old, new in zip(before, sac.policy.encoder.parameters(), strict=True)]
    assert all(moved)
    before = [weights.detach().clone() for weights in sac.policy.encoder.parameters()]
    sac.update_policy(seen, batch, worth)
    assert all(torch.equal(old, new) for old, new in zip(before, sac.policy.encoder.parameters(), strict=True))


def test_a_share_of_each_batch_was_demonstrated() -> None:
    memories = [Replay(1, 20, state_size=3, action_size=2, album=None, shown=bool(i)) for i in range(2)]
    for number, memory in enumerate(memories):
        states = {"states": np.full((4, 3), number, np.float32)}
        memory.add_episode(states, np.zeros((3, 2), np.float32), np.zeros(3, np.float32), np.zeros(3, bool))
    (batch, _) = learner(demos=DemosConfig(path="x", share=0.25)).batches(memories[0], memories[1], 2)
    assert len(batch) == 32 and batch.good.tolist() == [False] * 24 + [True] * 8
    assert batch.before["states"][:, 0].tolist() == [0.0] * 24 + [1.0] * 8


def test_it_finds_the_action_that_pays() -> None:
    """One step, one state: the reward is highest at an action that the policy must find."""
    sac = learner(batch=64, gamma=0.0, target_entropy=-6.0)
    memory = Replay(1, 2000, state_size=3, action_size=2, album=None)
    random, best = np.random.default_rng(0), np.array([0.5, -0.3])
    for _ in range(400):
        action = random.uniform(-1, 1, (1, 2)).astype(np.float32)
        reward = (-((action - best) ** 2).sum(axis=1)).astype(np.float32)
        memory.add_episode({"states": np.zeros((2, 3), np.float32)}, action, reward, np.ones(1, bool))
    sac.update(memory, None, 1200)
    found = sac.policy.act({"states": np.zeros((1, 3), np.float32)})[0]
    assert np.abs(found - best).max() < 0.12


def test_what_is_no_number_is_said() -> None:
    sac = learner(batch=8)
    memory = Replay(1, 20, state_size=3, action_size=2, album=None)
    bad = np.full(3, math.nan, np.float32)
    memory.add_episode({"states": np.zeros((4, 3), np.float32)}, np.zeros((3, 2), np.float32), bad, np.zeros(3, bool))
    with pytest.raises(Exception, match="not finite"):
        sac.update(memory, None, 1)


def test_the_learning_rate_falls_where_it_is_asked_to() -> None:
    sac = learner(lr=0.01)
    assert sac.set_rate(0.25) == 0.01
    sac.actor = replace(sac.actor, optim=OptimConfig(lr=0.01, schedule="linear"))
    assert sac.set_rate(0.25) == pytest.approx(0.0075)
    assert all(
        group["lr"] == pytest.approx(0.0075) for each in sac.optimizers().values() for group in each.param_groups
    )
