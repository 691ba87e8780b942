"""The policy: densities by the textbook, a normaliser that is right and saved, gradients everywhere."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from referee.rl.policy import ImageEncoder, Policy, PolicySpec, RunningNorm, Tanh

MLP = PolicySpec("mlp", state_size=6, image_size=0, views=0, action_size=3, hidden_dims=(16, 16))
CNN = PolicySpec("cnn", state_size=4, image_size=64, views=2, action_size=3, hidden_dims=(16,), proprio_size=2)
BLIND = PolicySpec("cnn", state_size=0, image_size=64, views=1, action_size=3, hidden_dims=(16,))


def observation(spec: PolicySpec, n: int = 5) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    parts: dict[str, np.ndarray] = {}
    if spec.state_size:
        parts["states"] = random.normal(2.0, 3.0, (n, spec.state_size)).astype(np.float32)
    if spec.views:
        size = (spec.image_size, spec.image_size, 3)
        parts["main_images"] = random.integers(0, 256, (n, *size), dtype=np.uint8)
        parts["extra_view_images"] = random.integers(0, 256, (n, spec.views - 1, *size), dtype=np.uint8)
    return parts


def tensors(parts: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value) for name, value in parts.items()}


@pytest.mark.parametrize("spec", [MLP, CNN, BLIND])
def test_log_density_and_entropy_are_those_of_torch(spec: PolicySpec) -> None:
    torch.manual_seed(0)
    policy = Policy(spec)
    policy.log_std.data = torch.tensor([-1.0, 0.2, 0.5])
    parts, actions = tensors(observation(spec)), torch.randn(5, 3)
    reference = torch.distributions.Normal(policy.mean(parts), policy.log_std.exp())
    log_prob, value = policy.evaluate(parts, actions)
    torch.testing.assert_close(log_prob, reference.log_prob(actions).sum(dim=1))
    torch.testing.assert_close(policy.entropy(), reference.entropy()[0].sum())
    torch.testing.assert_close(value, policy.value(parts))


def test_act_is_the_mean_plus_scaled_noise() -> None:
    policy, parts = Policy(MLP), observation(MLP)
    noise = np.ones((5, 3), np.float32)
    difference = policy.act(parts, noise=noise) - policy.act(parts)
    np.testing.assert_allclose(difference, math.exp(-0.5), rtol=1e-5)


def test_fast_tanh_is_tanh_with_its_gradient() -> None:
    x = torch.linspace(-12, 12, 501, dtype=torch.float32, requires_grad=True)
    y = Tanh()(x)
    torch.testing.assert_close(y, torch.tanh(x.detach()), atol=3e-7, rtol=1e-5)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 1 - torch.tanh(x.detach()) ** 2, atol=1e-6, rtol=1e-4)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 1000))
def test_the_normaliser_is_the_mean_and_variance_of_all_it_saw(sizes: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    parts = [random.normal(5.0, 2.0, (n, 3)).astype(np.float32) for n in sizes]
    norm = RunningNorm(3)
    for part in parts:
        norm.update(torch.from_numpy(part))
    everything = np.concatenate(parts).astype(np.float64)
    np.testing.assert_allclose(norm.mean, everything.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(norm.var, everything.var(axis=0), rtol=1e-7, atol=1e-9)
    assert float(norm.count) == len(everything)


def test_the_normaliser_is_saved_with_the_policy() -> None:
    torch.manual_seed(0)
    policy, parts = Policy(MLP), observation(MLP, 50)
    policy.norm.update(torch.from_numpy(parts["states"]))
    torch.manual_seed(1)
    other = Policy(MLP)
    other.load_state_dict(policy.state_dict())
    np.testing.assert_array_equal(other.act(parts), policy.act(parts))


@pytest.mark.parametrize("spec", [MLP, CNN, BLIND])
def test_every_parameter_learns(spec: PolicySpec) -> None:
    policy = Policy(spec)
    log_prob, value = policy.evaluate(tensors(observation(spec)), torch.randn(5, 3))
    (log_prob.sum() + value.sum()).backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_images_matter_to_the_cnn_and_every_view_does() -> None:
    policy, parts = Policy(CNN), observation(CNN)
    plain = policy.act(parts)
    for name in ("main_images", "extra_view_images"):
        assert not np.array_equal(policy.act({**parts, name: 255 - parts[name]}), plain)


def test_beside_images_the_actor_reads_proprioception_only_and_the_critic_all_of_the_state() -> None:
    policy, parts = Policy(CNN), observation(CNN)
    plain, value = policy.act(parts), policy.value(tensors(parts))
    for column, felt in enumerate([True, True, False, False]):
        states = parts["states"].copy()
        states[:, column] += 1.0
        changed = {**parts, "states": states}
        assert np.array_equal(policy.act(changed), plain) != felt
        assert not torch.equal(policy.value(tensors(changed)), value)


def test_pixels_are_scaled_to_half_around_zero() -> None:
    encoder, parts = ImageEncoder(2, 64), tensors(observation(CNN))
    pixels = torch.cat([parts["main_images"], parts["extra_view_images"][:, 0]], dim=-1).permute(0, 3, 1, 2)
    wanted = encoder.head(encoder.convolutions(pixels / 255.0 - 0.5))
    torch.testing.assert_close(encoder(parts["main_images"], parts["extra_view_images"]), wanted, rtol=1e-3, atol=1e-4)


def test_the_spec_survives_json() -> None:
    assert PolicySpec.from_json(CNN.to_json()) == CNN
