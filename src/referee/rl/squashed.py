"""The policy of soft actor-critic: a Gaussian whose spread depends on the state, squashed into −1..1 by tanh."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from referee.envs.contract import IMAGES, Observation
from referee.rl.policy import ImageEncoder, Policy, PolicySpec, RunningNorm, Tensors

LOG_STD = (-10.0, 2.0)


class SquashedPolicy(nn.Module):
    """Acts like `Policy`, on the same inputs; critics are the learner's own."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        self.spec = spec
        self.norm = RunningNorm(spec.state_size) if spec.state_size else None
        self.encoder = ImageEncoder(spec.views, spec.image_size) if spec.model_type == "cnn" else None
        sizes = (self.seen_size, *spec.hidden_dims)
        hidden = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU(inplace=True))]
        head = nn.Linear(sizes[-1], 2 * spec.action_size)
        with torch.no_grad():
            head.weight.mul_(0.1)
            head.bias.zero_()
            head.bias[spec.action_size :].fill_(spec.initial_log_std)
        self.actor = nn.Sequential(*hidden, head)

    @property
    def seen_size(self) -> int:
        """Numbers that `seen` gives: of the state; or of the pictures, and of what the robot feels of itself."""
        return self.spec.state_size if self.encoder is None else self.encoder.features + self.spec.proprio_size

    def seen(self, observation: Tensors) -> Tensor:
        """What the policy and its critics read, f32[n,·]."""
        if self.encoder is None:
            assert self.norm is not None
            return self.norm(observation["states"])
        pictures = self.encoder(observation["main_images"], observation["extra_view_images"])
        if self.norm is None:
            return pictures
        return torch.cat([pictures, self.norm(observation["states"])[:, : self.spec.proprio_size]], dim=1)

    def gaussian(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log of the spread before tanh, f32[n,a] each."""
        mean, log_std = self.actor(seen).chunk(2, dim=-1)
        return mean, log_std.clamp(*LOG_STD)

    def sample(self, seen: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions f32[n,a] for standard normal noise, and their log-density f32[n]."""
        mean, log_std = self.gaussian(seen)
        free = mean + log_std.exp() * noise
        return torch.tanh(free), log_density(free, noise, log_std)

    def mean(self, observation: Tensors) -> Tensor:
        """The action without noise, f32[n,a]; behaviour cloning fits it."""
        return torch.tanh(self.gaussian(self.seen(observation))[0])

    @torch.inference_mode()
    def act(self, observation: Observation, *, noise: np.ndarray | None = None) -> np.ndarray:
        """Actions f32[n,a] in −1..1: without noise, or with standard normal `noise` scaled by the policy's spread."""
        parts = {name: torch.from_numpy(np.ascontiguousarray(observation[name])) for name in self.inputs}
        mean, log_std = self.gaussian(self.seen(parts))
        free = mean if noise is None else mean + log_std.exp() * torch.from_numpy(noise)
        return torch.tanh(free).numpy()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The parts of an observation that this policy looks at."""
        return (IMAGES if self.encoder is not None else ()) + (("states",) if self.norm is not None else ())

    def load_state_dict(self, *args: object, **kwargs: object) -> object:
        """Load, and refresh the normaliser."""
        result = super().load_state_dict(*args, **kwargs)  # type: ignore[arg-type]
        if self.norm is not None:
            self.norm.refresh()
        return result


AnyPolicy = Policy | SquashedPolicy


def make_policy(spec: PolicySpec) -> AnyPolicy:
    """The policy of a spec, with random weights."""
    return SquashedPolicy(spec) if spec.squashed else Policy(spec)


def log_density(free: Tensor, noise: Tensor, log_std: Tensor) -> Tensor:
    """f32[n]: of tanh(free), where free = mean + exp(log_std)·noise.

    The Gaussian's, minus log(1 − tanh²) in the form that does not round to log 0: 2·(log 2 − x − softplus(−2x)).
    """
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    stretch = 2.0 * (math.log(2.0) - free - nn.functional.softplus(-2.0 * free))
    return (gaussian - stretch).sum(dim=-1)
