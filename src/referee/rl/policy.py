"""The policy: a Gaussian actor and a critic on state, images or both, with the normaliser that belongs to them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from referee import plain
from referee.envs.contract import IMAGES, Observation, RefereeVectorEnv

Tensors = dict[str, Tensor]


MAX_SIZE = 1 << 16
"""Of a layer, a state or a picture's side; more is a broken file."""


@dataclass(frozen=True)
class PolicySpec:
    """All that is needed to build a policy, as plain values."""

    model_type: str
    """`mlp` (state) or `cnn` (images)."""
    state_size: int
    image_size: int
    views: int
    action_size: int
    hidden_dims: tuple[int, ...] = (128, 128)
    initial_log_std: float = -0.5
    proprio_size: int = 0
    """Leading entries of the state that the actor of a `cnn` sees beside its images; the critic sees all of it."""
    squashed: bool = False
    """Whether actions are squashed by tanh (SAC), or clipped (PPO)."""

    @classmethod
    def of(
        cls,
        env: RefereeVectorEnv,
        model_type: str,
        hidden_dims: tuple[int, ...],
        initial_log_std: float,
        *,
        squashed: bool = False,
    ) -> PolicySpec:
        """The spec that fits an environment's spaces."""
        spaces: Any = env.single_observation_space
        has_images = "main_images" in spaces.spaces
        has_state = "states" in spaces.spaces
        return cls(
            model_type=model_type,
            state_size=spaces["states"].shape[0] if has_state else 0,
            image_size=env.image_size if has_images else 0,
            views=len(env.cameras) if has_images else 0,
            action_size=env.single_action_space.shape[0],  # type: ignore[index]
            hidden_dims=tuple(hidden_dims),
            initial_log_std=initial_log_std,
            proprio_size=env.proprio_size if has_images and has_state else 0,
            squashed=squashed,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "hidden_dims": list(self.hidden_dims)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> PolicySpec:
        """The inverse of `to_json`; ValueError says what cannot be."""
        spec = plain.build(cls, values)
        if spec.model_type not in ("mlp", "cnn") or not all(0 < size <= MAX_SIZE for size in spec.hidden_dims):
            raise ValueError(f"a {spec.model_type[:50]} of {spec.hidden_dims} cannot be built")
        sizes = (spec.state_size, spec.image_size, spec.views, spec.action_size, spec.proprio_size)
        if not all(0 <= size <= MAX_SIZE for size in sizes):
            raise ValueError(f"sizes of {sizes} cannot be built")
        return spec


class RunningNorm(nn.Module):
    """Mean and variance of all states seen, saved with the policy: what was learned is used with the same eyes."""

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("var", torch.ones(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.refresh()

    def refresh(self) -> None:
        """Derive again what `forward` uses; call it after loading."""
        self._shift = self.mean.float()
        self._scale = (self.var + 1e-8).rsqrt().float()

    def forward(self, states: Tensor) -> Tensor:
        """States f32[…,d], normalised and clipped to ±10."""
        return (states - self._shift).mul_(self._scale).clamp_(-10.0, 10.0)

    @torch.no_grad()
    def update(self, states: Tensor) -> None:
        """Take in states f32[n,d] (Chan's parallel update of mean and variance)."""
        states = states.reshape(-1, states.shape[-1]).double()
        n = float(len(states))
        mean, var = states.mean(dim=0), states.var(dim=0, unbiased=False)
        total = self.count + n
        delta = mean - self.mean
        self.var.copy_((self.var * self.count + var * n + delta**2 * self.count * n / total) / total)
        self.mean.add_(delta * n / total)
        self.count.copy_(total)
        self.refresh()


def tanh_of_half_(x: Tensor) -> Tensor:
    """tanh(x / 2) in place, as 2·sigmoid(x) − 1: the same to float precision, a third of the time on a CPU."""
    return x.sigmoid_().mul_(2.0).sub_(1.0)


class _FastTanh(torch.autograd.Function):
    """tanh by way of `tanh_of_half_`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = tanh_of_half_(x * 2.0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(grad, y)


class Tanh(nn.Module):
    """The activation of our MLPs."""

    def forward(self, x: Tensor) -> Tensor:
        """tanh(x)"""
        return _FastTanh.apply(x)  # type: ignore[no-untyped-call]


class MLP(nn.Sequential):
    """Linear layers with tanh between them, orthogonally initialised."""

    def __init__(self, sizes: tuple[int, ...], *, last_gain: float) -> None:
        layers: list[nn.Module] = []
        for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            last = i == len(sizes) - 2
            linear = nn.Linear(fan_in, fan_out)
            nn.init.orthogonal_(linear.weight, last_gain if last else math.sqrt(2))
            nn.init.zeros_(linear.bias)
            layers += [linear] if last else [linear, Tanh()]
        super().__init__(*layers)
        self.linears = tuple(layer for layer in layers if isinstance(layer, nn.Linear))

    def without_autograd(self, x: Tensor) -> Tensor:
        """The forward pass in fewer steps."""
        *hidden, last = self.linears
        for layer in hidden:
            x = tanh_of_half_(torch.addmm(layer.bias, x, layer.weight.t(), beta=2.0, alpha=2.0))
        return torch.addmm(last.bias, x, last.weight.t())


class ImageEncoder(nn.Module):
    """A small convolutional net on all views stacked; uint8 in, features out."""

    def __init__(self, views: int, image_size: int, features: int = 128) -> None:
        super().__init__()
        self.features = features
        self.convolutions = nn.Sequential(
            nn.Conv2d(3 * views, 16, 8, stride=4),
            nn.ReLU(inplace=True),
            nn.Conv2d(16, 32, 4, stride=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 32, 3, stride=1),
            nn.ReLU(inplace=True),
            nn.Flatten(),
        ).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        with torch.no_grad():
            size = self.convolutions(torch.zeros(1, 3 * views, image_size, image_size)).shape[1]
        self.head = nn.Sequential(nn.Linear(size, features), nn.LayerNorm(features), Tanh())

    def forward(self, main: Tensor, extra: Tensor) -> Tensor:
        """main uint8[n,H,W,3], extra uint8[n,V,H,W,3] → f32[n,features]."""
        views = [main, *extra.unbind(dim=1)] if extra.shape[1] else [main]
        stacked = torch.cat(views, dim=-1).permute(0, 3, 1, 2).float()
        first, *others = self.convolutions
        # The first layer on x / 255 − 0.5, with the scaling done to its few weights instead of all pixels.
        bias = first.bias - 0.5 * first.weight.sum(dim=(1, 2, 3))
        x = nn.functional.conv2d(stacked, first.weight / 255.0, bias, first.stride)
        for layer in others:
            x = layer(x)
        return self.head(x)


class Eyes(nn.Module):
    """What policies see with: the normaliser of the state, and the encoder of pictures."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        self.spec = spec
        self.norm = RunningNorm(spec.state_size) if spec.state_size else None
        self.encoder = ImageEncoder(spec.views, spec.image_size) if spec.model_type == "cnn" else None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The parts of an observation that this policy looks at."""
        return (IMAGES if self.encoder is not None else ()) + (("states",) if self.norm is not None else ())

    def tensors(self, observation: Observation) -> Tensors:
        """These parts, sharing memory where they can."""
        return {name: torch.from_numpy(np.ascontiguousarray(observation[name])) for name in self.inputs}

    @property
    def seen_size(self) -> int:
        """Numbers that `seen` gives."""
        return self.spec.state_size if self.encoder is None else self.encoder.features + self.spec.proprio_size

    def seen(self, observation: Tensors) -> Tensor:
        """What the actor reads, f32[n,·]: the state; or the pictures' features, and what the robot feels of itself."""
        if self.encoder is None:
            return self.normalised(observation)
        pictures = self.encoder(*(observation[name] for name in IMAGES))
        if self.norm is None:
            return pictures
        return torch.cat([pictures, self.normalised(observation)[:, : self.spec.proprio_size]], dim=1)

    def normalised(self, observation: Tensors) -> Tensor:
        """The state f32[n,d]."""
        assert self.norm is not None
        return self.norm(observation["states"])

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load, and refresh the normaliser."""
        result = super().load_state_dict(*args, **kwargs)
        if self.norm is not None:
            self.norm.refresh()
        return result


class Policy(Eyes):
    """A diagonal Gaussian over actions and a value of the state.

    The mean is unbounded; actions are clipped to −1..1 when they are sent to an environment, and the density is that
    of the unclipped ones.
    """

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        self.actor = MLP((self.seen_size, *spec.hidden_dims, spec.action_size), last_gain=0.01)
        self.critic = MLP((spec.state_size or self.seen_size, *spec.hidden_dims, 1), last_gain=1.0)
        self.log_std = nn.Parameter(torch.full((spec.action_size,), spec.initial_log_std))

    def judged(self, observation: Tensors) -> Tensor:
        """What the critic reads, f32[n,·]: the state where there is one, since it is needed in training only."""
        return self.seen(observation) if self.norm is None else self.normalised(observation)

    def mean(self, observation: Tensors) -> Tensor:
        """The mean action f32[n,a]."""
        return self.actor(self.seen(observation))

    def value(self, observation: Tensors) -> Tensor:
        """f32[n]"""
        return self.critic(self.judged(observation))[:, 0]

    def forget_values(self) -> None:
        """Every state is worth 0 from now on, until the critic learns better; what it sees in states it keeps."""
        last = self.critic.linears[-1]
        last.weight.data.zero_()
        last.bias.data.zero_()

    def evaluate(self, observation: Tensors, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-density of actions and value of the state, f32[n] each."""
        seen = self.seen(observation)
        judged = seen if self.encoder is None or self.norm is None else self.normalised(observation)
        return self.log_prob(self.actor(seen), actions), self.critic(judged)[:, 0]

    def log_prob(self, mean: Tensor, actions: Tensor) -> Tensor:
        """Log-density f32[n] of actions under the Gaussian with that mean."""
        standardised = (actions - mean) * torch.exp(-self.log_std)
        constant = self.log_std.sum() + 0.5 * actions.shape[1] * math.log(2 * math.pi)
        return -0.5 * (standardised**2).sum(dim=1) - constant

    def entropy(self) -> Tensor:
        """Of the Gaussian, the same for every state."""
        return (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()

    @torch.inference_mode()
    def act(self, observation: Observation, *, noise: np.ndarray | None = None) -> np.ndarray:
        """Actions f32[n,a]: the mean, plus standard normal `noise` scaled by the policy's spread. Not clipped."""
        mean = self.actor.without_autograd(self.seen(self.tensors(observation)))
        if noise is not None:
            mean.addcmul_(torch.exp(self.log_std), torch.from_numpy(noise))
        return mean.numpy()


class Acts(Protocol):
    """What all policies can."""

    spec: PolicySpec

    def act(self, observation: Observation, *, noise: np.ndarray | None = None) -> np.ndarray:
        """Actions f32[n,a], with standard normal `noise` scaled by the policy's spread."""


class Player:
    """A trained policy as `roll_out` wants it: it acts, without noise, on what it saw last."""

    def __init__(self, policy: Acts, env: RefereeVectorEnv, *, noise_seed: int | None = None) -> None:
        self._policy = policy
        self._shape = (env.num_envs, policy.spec.action_size)
        self._observation: dict[str, np.ndarray] = {}
        self._random = None if noise_seed is None else np.random.default_rng(noise_seed)

    def see(self, observation: dict[str, np.ndarray]) -> None:
        """Take in the present observation."""
        self._observation = observation

    def __call__(self) -> np.ndarray:
        """The next actions, clipped."""
        noise = None if self._random is None else self._random.standard_normal(self._shape, dtype=np.float32)
        return np.clip(self._policy.act(self._observation, noise=noise), -1.0, 1.0)
