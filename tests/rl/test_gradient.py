"""The gradient by hand is autograd's, for every setting that it knows."""

import pytest
import torch

from referee.config.learning import ActorConfig, PPOConfig
from referee.rl.batch import Batch
from referee.rl.gradient import HandGradient
from referee.rl.policy import Policy, PolicySpec
from referee.rl.ppo import PPO


@pytest.mark.parametrize("hidden", [(), (16,), (32, 16), (8, 8, 8)])
@pytest.mark.parametrize(
    "config",
    [
        PPOConfig(),
        PPOConfig(normalise_advantages=False, clip_ratio=0.05),
        PPOConfig(value_clip=0.3, value_coef=0.9),
        PPOConfig(entropy_coef=0.02, clip_ratio=0.5, value_clip=5.0),
    ],
)
def test_by_hand_equals_autograd(hidden: tuple[int, ...], config: PPOConfig) -> None:
    torch.manual_seed(len(hidden))
    policy = Policy(PolicySpec("mlp", state_size=5, image_size=0, views=0, action_size=3, hidden_dims=hidden))
    policy.norm.update(3 * torch.randn(100, 5) + 1)  # type: ignore[union-attr]
    with torch.no_grad():
        for each in policy.parameters():
            each.add_(0.3 * torch.randn_like(each))
    ppo = PPO(policy, config, ActorConfig(global_batch_size=64), torch.Generator())
    for count in (64, 64, 40):  # buffers are used again, also for fewer rows
        states, actions = 3 * torch.randn(count, 5), torch.randn(count, 3)
        log_probs, values = (x.detach() for x in policy.evaluate({"states": states}, actions))
        noise = lambda n=count: torch.randn(n)  # noqa: E731
        batch = Batch(
            {"states": states}, actions, log_probs + 0.3 * noise(), values + 0.5 * noise(), noise(), 2 * noise()
        )
        assert ppo.weights.grad is not None
        ppo.weights.grad.zero_()
        loss, wanted = ppo.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        gradient = ppo.weights.grad.clone()
        ppo.weights.grad.fill_(7.0)
        parts = HandGradient(policy, config, 64)(batch) if count == 40 else ppo.backward(batch)
        torch.testing.assert_close(ppo.weights.grad, gradient, rtol=1e-4, atol=1e-6)
        for name in ("policy_loss", "value_loss", "log_ratio"):
            torch.testing.assert_close(getattr(parts, name), getattr(wanted, name).detach(), rtol=1e-4, atol=1e-6)


def test_images_are_left_to_autograd() -> None:
    policy = Policy(PolicySpec("cnn", state_size=0, image_size=48, views=1, action_size=3, hidden_dims=(8,)))
    ppo = PPO(policy, PPOConfig(), ActorConfig(global_batch_size=4), torch.Generator())
    images = torch.randint(0, 255, (4, 48, 48, 3), dtype=torch.uint8)
    observations = {"main_images": images, "extra_view_images": torch.zeros(4, 0, 48, 48, 3, dtype=torch.uint8)}
    ppo.backward(Batch(observations, torch.randn(4, 3), *torch.randn(4, 4)))
    assert all(each.grad is not None and each.grad.abs().sum() > 0 for each in policy.parameters())


def test_side_by_side_gives_the_same_bits() -> None:
    """With several threads, actor and critic are computed at the same time; nothing else changes."""
    gradients = []
    for threads in (1, 2):
        torch.manual_seed(3)
        policy = Policy(PolicySpec("mlp", state_size=42, image_size=0, views=0, action_size=4))
        policy.norm.update(torch.randn(100, 42))  # type: ignore[union-attr]
        ppo = PPO(policy, PPOConfig(), ActorConfig(global_batch_size=800), torch.Generator())
        batch = Batch({"states": torch.randn(800, 42)}, torch.randn(800, 4), *torch.randn(4, 800))
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            parts = ppo.backward(batch)
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(before)
        assert ppo.weights.grad is not None
        gradients.append((ppo.weights.grad.clone(), parts))
    (serial, one), (side_by_side, two) = gradients
    assert torch.equal(serial, side_by_side)
    for name in ("policy_loss", "value_loss", "log_ratio"):
        assert torch.equal(getattr(one, name), getattr(two, name))


def test_an_error_beside_it_is_raised() -> None:
    """A failure in the critic's thread is not lost, and the number of threads is what it was."""
    policy = Policy(PolicySpec("mlp", state_size=5, image_size=0, views=0, action_size=3))
    ppo = PPO(policy, PPOConfig(), ActorConfig(global_batch_size=8), torch.Generator())
    log_probs, values, advantages = torch.randn(3, 8)
    batch = Batch({"states": torch.randn(8, 5)}, torch.randn(8, 3), log_probs, values, advantages, torch.randn(7))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError, match="size"):
            ppo.backward(batch)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
