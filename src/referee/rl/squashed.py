"""The policy of soft actor-critic: a Gaussian whose spread depends on the state, squashed into −1..1 by tanh."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from referee.envs.contract import Observation
from referee.rl.policy import Eyes, Policy, PolicySpec, Tensors

LOG_STD = (-10.0, 2.0)


class SquashedPolicy(Eyes):
    """Acts like `Policy`, on the same inputs; critics are the learner's own, and read what it has `seen`."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        sizes = (self.seen_size, *spec.hidden_dims)
        hidden = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU(inplace=True))]
        head = nn.Linear(sizes[-1], 2 * spec.action_size)
        with torch.no_grad():
            head.weight.mul_(0.1)
            head.bias.zero_()
            head.bias[spec.action_size :].fill_(spec.initial_log_std)
        self.actor = nn.Sequential(*hidden, head)

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
        mean, log_std = self.gaussian(self.seen(self.tensors(observation)))
        free = mean if noise is None else mean + log_std.exp() * torch.from_numpy(noise)
        return torch.tanh(free).numpy()


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
