"""The gradient of the PPO loss for a policy on state, written by hand: autograd's numbers in two thirds of its time.

`PPO.loss` is the definition; a test holds the two together. What is saved is bookkeeping: activations and gradients
live in arrays that are allocated once, and results are written where they are wanted.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from referee.config.learning import PPOConfig
from referee.rl.batch import Batch, Parts
from referee.rl.policy import MLP, Policy


class HandGradient:
    """Fills the `.grad` of every parameter of a policy without encoder."""

    def __init__(self, policy: Policy, config: PPOConfig, batch_size: int) -> None:
        self._policy = policy
        self._config = config
        self._actor = _Tower(policy.actor, batch_size)
        self._critic = _Tower(policy.critic, batch_size)
        self._helper: ThreadPoolExecutor | None = None

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Parts:
        """The gradient of the loss on `batch`, into the parameters; returns what the loss is made of.

        Where torch may use several threads, actor and critic are computed side by side, since they share no weights.
        That is faster than several threads for each of these small products, and gives the same bits.
        """
        norm = self._policy.norm
        assert norm is not None
        states = norm(batch.observations["states"])
        threads = torch.get_num_threads()
        if threads == 1:
            return Parts(*self._actor_gradient(states, batch), self._critic_gradient(states, batch))
        if self._helper is None:
            self._helper = ThreadPoolExecutor(1, thread_name_prefix="critic")
        torch.set_num_threads(threads // 2)
        try:
            value_loss = self._helper.submit(self._critic_gradient, states, batch)
            parts = self._actor_gradient(states, batch)
            return Parts(*parts, value_loss.result())
        finally:
            torch.set_num_threads(threads)

    @torch.no_grad()
    def _actor_gradient(self, states: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Gradients of the actor and of the noise; returns the loss of the policy and the log ratios."""
        config, policy, count = self._config, self._policy, len(batch)
        assert policy.log_std.grad is not None
        mean = self._actor.forward(states)
        scale = torch.exp(-policy.log_std)
        standardised = (batch.actions - mean).mul_(scale)
        squares = standardised * standardised
        constant = policy.log_std.sum() + 0.5 * batch.actions.shape[1] * math.log(2 * math.pi)
        log_ratio = squares.sum(dim=1).mul_(-0.5).sub_(constant).sub_(batch.log_probs)
        advantages = batch.advantages
        if config.normalise_advantages:
            deviation, middle = torch.std_mean(advantages)
            advantages = (advantages - middle).div_(deviation + 1e-8)
        ratio = log_ratio.exp()
        free = advantages * ratio
        clipped = advantages * ratio.clamp_(1.0 - config.clip_ratio, 1.0 + config.clip_ratio)
        policy_loss = -torch.minimum(free, clipped).mean()
        by_log_prob = torch.where(free <= clipped, free, 0.0).mul_(-1.0 / count)[:, None]
        torch.sum(squares.sub_(1.0).mul_(by_log_prob), dim=0, out=policy.log_std.grad)
        policy.log_std.grad.sub_(config.entropy_coef)
        self._actor.backward(standardised.mul_(scale).mul_(by_log_prob))
        return policy_loss, log_ratio

    @torch.no_grad()
    def _critic_gradient(self, states: Tensor, batch: Batch) -> Tensor:
        """Gradients of the critic; returns the loss of the values."""
        config, count = self._config, len(batch)
        values = self._critic.forward(states)[:, 0]
        if config.value_clip is None:
            errors = values - batch.returns
            by_value = errors
        else:
            change = values - batch.values
            errors = change.clamp(-config.value_clip, config.value_clip).add_(batch.values).sub_(batch.returns)
            by_value = torch.where(change.abs_() <= config.value_clip, errors, 0.0)
        value_loss = (errors * errors).mean()
        self._critic.backward((by_value * (2.0 * config.value_coef / count))[:, None])
        return value_loss


class _Tower:
    """Forward and backward pass of an MLP, in arrays of its own."""

    def __init__(self, layers: MLP, batch_size: int) -> None:
        self._layers = layers
        self._outputs = [torch.empty(batch_size, layer.out_features) for layer in layers.linears]
        self._gradients = [torch.empty(batch_size, layer.in_features) for layer in layers.linears]
        self._inputs: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        outputs = self._layers.outputs(x, into=[buffer[: len(x)] for buffer in self._outputs])
        self._inputs = [x, *outputs[:-1]]
        return outputs[-1]

    def backward(self, gradient: Tensor) -> None:
        """From the gradient of the output to those of the weights."""
        for i in reversed(range(len(self._inputs))):
            layer, x = self._layers.linears[i], self._inputs[i]
            assert layer.weight.grad is not None and layer.bias.grad is not None
            torch.mm(gradient.t(), x, out=layer.weight.grad)
            torch.sum(gradient, dim=0, out=layer.bias.grad)
            if i:
                before = torch.mm(gradient, layer.weight, out=self._gradients[i][: len(x)])
                gradient = torch.ops.aten.tanh_backward.grad_input(before, x, grad_input=before)
