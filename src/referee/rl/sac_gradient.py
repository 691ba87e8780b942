"""The gradients of SAC for a policy on state, written by hand: autograd's numbers in two thirds of its time.

`sac.critic_loss` and `SAC.policy_loss` are the definitions; a test holds them together with this.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from referee.rl.critics import Critics
from referee.rl.squashed import LOG_STD, SquashedPolicy, log_density

if TYPE_CHECKING:
    from referee.rl.replay import Transitions
    from referee.rl.sac import SAC

_norm = torch.ops.aten.native_layer_norm
_norm_backward = torch.ops.aten.native_layer_norm_backward


class CriticTower:
    """Forward and backward pass of stacked critics; gradients go into their parameters."""

    def __init__(self, critics: Critics) -> None:
        self._critics = critics
        self._saved: list[tuple[Tensor, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        """f32[n,·] → f32[E,n]"""
        critics, self._saved = self._critics, []
        last = len(critics.weights) - 1
        x = x.expand(critics.count, *x.shape)
        for i, (weight, bias) in enumerate(zip(critics.weights, critics.biases, strict=True)):
            before, x = x, torch.baddbmm(bias, x, weight)
            normed: tuple[Tensor, ...] = ()
            if i < last:
                if critics.layer_norm:
                    free = x
                    x, mean, rstd = _norm(x, x.shape[-1:], None, None, 1e-5)
                    normed = free, mean, rstd
                x = x.relu_()
            self._saved.append((before, x, *normed))
        return x[..., 0]

    def backward(self, gradient: Tensor) -> None:
        """From the gradient of what they said, f32[E,n], to those of all weights."""
        for i, down in self._down(gradient[..., None]):
            weight, bias = self._critics.weights[i], self._critics.biases[i]
            assert weight.grad is not None and bias.grad is not None
            torch.bmm(self._saved[i][0].mT, down, out=weight.grad)
            torch.sum(down, dim=1, keepdim=True, out=bias.grad)

    def to_actions(self, gradient: Tensor, size: int) -> Tensor:
        """The same to the last `size` inputs, f32[n,size], which all critics share; weights are left alone."""
        *_, (_, down) = self._down(gradient[..., None])
        return torch.bmm(down, self._critics.weights[0][:, -size:].mT).sum(dim=0)

    def _down(self, gradient: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Each layer, the last first, with the gradient of what it gave before its ReLU."""
        for i in reversed(range(len(self._saved))):
            _, after, *normed = self._saved[i]
            if i < len(self._saved) - 1:
                gradient = torch.ops.aten.threshold_backward(gradient, after, 0.0)
                if normed:
                    free, mean, rstd = normed
                    shape = free.shape[-1:]
                    gradient = _norm_backward(gradient, free, shape, mean, rstd, None, None, [True, False, False])[0]
            yield i, gradient
            if i:
                gradient = torch.bmm(gradient, self._critics.weights[i].mT)


class PolicyTower:
    """The same for a squashed policy: from what critics say of its actions to its weights."""

    def __init__(self, policy: SquashedPolicy) -> None:
        self._policy = policy
        self._layers = [layer for layer in policy.actor if isinstance(layer, nn.Linear)]
        self._inputs: list[Tensor] = []
        self._parts: tuple[Tensor, ...] = ()

    def forward(self, seen: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions f32[n,a] and their log-density f32[n], as `SquashedPolicy.sample` gives them."""
        self._inputs, x = [], seen
        for i, layer in enumerate(self._layers):
            self._inputs.append(x)
            x = torch.addmm(layer.bias, x, layer.weight.t())
            x = x.relu_() if i < len(self._layers) - 1 else x
        mean, wanted = x.chunk(2, dim=-1)
        log_std = wanted.clamp(*LOG_STD)
        scaled = log_std.exp().mul_(noise)
        free = mean + scaled
        actions = torch.tanh(free)
        self._parts = mean, wanted, scaled, actions
        return actions, log_density(free, noise, log_std)

    @property
    def mean(self) -> Tensor:
        """tanh of the mean, f32[n,a]: the action without noise."""
        return torch.tanh(self._parts[0])

    def backward(self, by_action: Tensor, temperature: float, by_mean: Tensor | None = None) -> None:
        """Gradients of the mean of temperature · log-density, plus a loss of whose derivative by actions is given.

        by_action: f32[n,a]. by_mean: the same of a loss by tanh of the mean.
        """
        _, wanted, scaled, actions = self._parts
        each = temperature / len(actions)
        by_free = torch.addcmul(by_action, by_action, actions * actions, value=-1.0).add_(actions, alpha=2.0 * each)
        by_log_std = torch.where((wanted > LOG_STD[0]) & (wanted < LOG_STD[1]), by_free * scaled - each, 0.0)
        if by_mean is not None:
            by_free = by_free + by_mean * (1.0 - self.mean.square())
        gradient = torch.cat([by_free, by_log_std], dim=1)
        for i in reversed(range(len(self._layers))):
            layer, x = self._layers[i], self._inputs[i]
            assert layer.weight.grad is not None and layer.bias.grad is not None
            torch.mm(gradient.t(), x, out=layer.weight.grad)
            torch.sum(gradient, dim=0, out=layer.bias.grad)
            if i:
                gradient = torch.ops.aten.threshold_backward(gradient @ layer.weight, x, 0.0)


class HandGradients:
    """`critic_loss` and `policy_loss` of a policy on state, with their gradients, without autograd."""

    def __init__(self, sac: SAC) -> None:
        self._sac = sac
        self._critics, self._policy = CriticTower(sac.critics), PolicyTower(sac.policy)

    @torch.no_grad()
    def critics(self, batch: Transitions, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the critics see and say, and their loss; its gradient is in their weights."""
        seen = self._sac.policy.seen(batch.before)
        said = self._critics.forward(torch.cat([seen, batch.actions], dim=1))
        errors = said - target
        self._critics.backward(errors * (2.0 / errors.numel()))
        return seen, said, errors.square().mean()

    @torch.no_grad()
    def policy(self, seen: Tensor, batch: Transitions, worth: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The policy's loss and its entropy; the gradient is in its weights."""
        config, count = self._sac.config, len(batch)
        actions, log_probs = self._policy.forward(seen, noise)
        said = self._critics.forward(torch.cat([seen, actions], dim=1))
        by_action = self._critics.to_actions(torch.full_like(said, -1.0 / said.numel()), actions.shape[1])
        temperature, value = self._sac.temperature, said.mean(dim=0)
        loss, by_mean = (temperature * log_probs - value).mean(), None
        if config.bc_coef:
            off = (self._policy.mean - batch.actions).mul_((batch.good & (worth > value))[:, None])
            weight = self._sac.imitation() * value.abs().mean()
            loss = loss + weight * off.square().sum() / count
            by_mean = off.mul_(2.0 * weight / count)
        self._policy.backward(by_action, temperature, by_mean)
        return loss, -log_probs.mean()
