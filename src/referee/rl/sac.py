"""Soft actor-critic, from top to bottom: targets, critics, policy, temperature. With demonstrations it is RLPD."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from referee.config.learning import ActorConfig, SACConfig
from referee.envs.contract import IMAGES
from referee.rl.critics import Critics
from referee.rl.optim import flatten, set_rate, step
from referee.rl.policy import Tensors
from referee.rl.replay import Replay, Transitions
from referee.rl.sac_gradient import CriticTower, PolicyTower
from referee.rl.squashed import SquashedPolicy

AT_ONCE = 64
"""Batches that are drawn together, where they hold no pictures."""


class SAC:
    """Updates a squashed policy from replays. All randomness comes from `random` and `generator`."""

    def __init__(
        self, policy: SquashedPolicy, config: SACConfig, actor: ActorConfig, generator: torch.Generator
    ) -> None:
        self.policy, self.config, self.actor, self.generator = policy, config, actor, generator
        self.random = np.random.default_rng(generator.initial_seed())
        spec = policy.spec
        inputs = policy.seen_size + spec.action_size
        self.critics = Critics(config.critics, inputs, spec.hidden_dims, layer_norm=config.layer_norm)
        self.targets = Critics(config.critics, inputs, spec.hidden_dims, layer_norm=config.layer_norm)
        self.targets.load_state_dict(self.critics.state_dict())
        self.targets.requires_grad_(False)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(max(config.initial_temperature, 1e-8))))
        self.target_entropy = -float(spec.action_size) if config.target_entropy is None else config.target_entropy
        encoder = () if policy.encoder is None else policy.encoder.parameters()
        self._critic_weights = flatten([*self.critics.parameters(), *encoder])
        self._target_weights = flatten(self.targets.parameters())
        self._policy_weights = flatten(policy.actor.parameters())
        self._size = self._target_weights.numel()  # the critics' share of what they and the encoder hold
        lr = actor.optim.lr
        self.critic_optimizer = torch.optim.Adam([self._critic_weights], lr=lr, fused=True)
        self.policy_optimizer = torch.optim.Adam([self._policy_weights], lr=lr, fused=True)
        self.temperature_optimizer = torch.optim.Adam([self.log_temperature], lr=lr, fused=True)
        self._by_hand = HandGradients(self) if policy.encoder is None else None
        self.updates = 0
        """Of the critics."""
        self.policy_updates = 0

    def imitation(self) -> float:
        """The present weight of imitation."""
        halving = self.config.bc_halving
        return self.config.bc_coef * (1.0 if halving is None else 0.5 ** (self.policy_updates / halving))

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """By name, for checkpoints."""
        return {
            "critic": self.critic_optimizer,
            "policy": self.policy_optimizer,
            "temperature": self.temperature_optimizer,
        }

    def set_rate(self, progress: float) -> float:
        """The learning rate after a share of the run, in 0..1; returns it."""
        return set_rate(self.optimizers().values(), self.actor.optim, progress)

    @property
    def temperature(self) -> float:
        """The weight of the entropy."""
        return float(self.log_temperature.detach().exp())

    def update(
        self, replay: Replay, demos: Replay | None, count: int, *, critic_only: bool = False
    ) -> dict[str, float]:
        """So many updates of the critics, and of the policy as often as is due; returns means of the losses."""
        rows: list[dict[str, Tensor]] = []
        for batch in self.batches(replay, demos, count):
            self.updates += 1
            seen, worth, found = self.teach_critics(batch)
            if not critic_only and self.updates % self.config.policy_interval == 0:
                found |= self.teach_policy(seen, batch, worth)
            rows.append(found)
        names = {name for row in rows for name in row}
        means = {name: float(torch.stack([row[name] for row in rows if name in row]).mean()) for name in sorted(names)}
        return {**means, "temperature": self.temperature, "updates": float(self.updates)}

    def batches(self, replay: Replay, demos: Replay | None, count: int) -> Iterator[Transitions]:
        """So many batches, a share of each of the demonstrations; drawn many at once, which is much cheaper."""
        config, size = self.config, self.actor.global_batch_size
        assert size is not None  # `config.load` decides it
        shown = 0 if demos is None else round(size * config.demos.share)
        at_once = 1 if replay.seen else AT_ONCE
        for start in range(0, count, at_once):
            times = min(at_once, count - start)
            parts = []
            for source, part in ((replay, size - shown), (demos, shown)):
                if source is not None and part:
                    found = source.transitions(
                        *source.draw(times * part, self.random), gamma=config.gamma, n_step=config.n_step,
                        bootstrap_type=config.bootstrap_type,
                    )  # fmt: skip
                    parts.append(found.chunks(part))
            for pieces in zip(*parts, strict=True):
                yield pieces[0] if len(pieces) == 1 else Transitions.joined(pieces)

    def teach_critics(self, batch: Transitions) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """One step of the critics (and of the encoder); returns what they saw and said, and their loss."""
        target = self.target(batch)
        if self._by_hand is not None:
            seen, said, loss = self._by_hand.critics(batch, target)
        else:
            self._zero(self._critic_weights)
            seen = self.policy.seen(self._shifted(batch.before))
            said = self.critics(seen, batch.actions)
            loss = critic_loss(said, target)
            loss.backward()  # type: ignore[no-untyped-call]
        step(self.critic_optimizer, self._critic_weights, self.actor.optim, loss="critics'")
        with torch.no_grad():
            self._target_weights.lerp_(self._critic_weights[: self._size], self.config.tau)
        found = {"critic_loss": loss.detach(), "target": target.mean()}
        return seen.detach(), said.detach().mean(dim=0), found

    @torch.no_grad()
    def target(self, batch: Transitions) -> Tensor:
        """f32[n]: what is paid, and what the least of some target critics says of the rest."""
        config = self.config
        seen = self.policy.seen(self._shifted(batch.after))
        actions, log_probs = self.policy.sample(seen, self._noise(batch.actions.shape))
        members = None
        if config.critic_subset < config.critics:
            members = torch.randperm(config.critics, generator=self.generator)[: config.critic_subset]
        value = self.targets(seen, actions, members).amin(dim=0)
        if config.backup_entropy:
            value = value - self.temperature * log_probs
        return batch.rewards + batch.discounts * value

    def teach_policy(self, seen: Tensor, batch: Transitions, worth: Tensor) -> dict[str, Tensor]:
        """One step of the policy towards what the critics value, and of the temperature towards its entropy.

        worth: f32[n], what the critics say of the actions in the batch.
        """
        noise = self._noise(batch.actions.shape)
        if self._by_hand is not None:
            loss, entropy = self._by_hand.policy(seen, batch, worth, noise)
        else:
            self._zero(self._policy_weights)
            self.critics.requires_grad_(False)  # they are asked, not taught
            loss, entropy = self.policy_loss(seen, batch, worth, noise)
            loss.backward()  # type: ignore[no-untyped-call]
            self.critics.requires_grad_(True)
        step(self.policy_optimizer, self._policy_weights, self.actor.optim, loss="policy's")
        self.policy_updates += 1
        if self.config.learn_temperature:
            self.log_temperature.grad = self.log_temperature.detach().exp() * (entropy - self.target_entropy)
            self.temperature_optimizer.step()
        return {"policy_loss": loss.detach(), "entropy": entropy}

    def policy_loss(self, seen: Tensor, batch: Transitions, worth: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """What the critics do not value, less entropy, and imitation missed; and the entropy.

        Imitated is what led to success, as long as the critics value it above what the policy would do.
        """
        actions, log_probs = self.policy.sample(seen, noise)
        value = self.critics(seen, actions).mean(dim=0)
        loss = (self.temperature * log_probs - value).mean()
        if self.config.bc_coef:
            miss = (self.policy.gaussian(seen)[0].tanh() - batch.actions).square().sum(dim=1)
            weight = self.imitation() * value.detach().abs().mean()  # so that it means the same for any reward
            loss = loss + weight * (miss * (batch.good & (worth > value))).mean()
        return loss, -log_probs.detach().mean()

    def _noise(self, shape: torch.Size) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def _shifted(self, observation: Tensors) -> Tensors:
        return {
            name: random_shift(value, self.config.random_shift, self.generator) if name in IMAGES else value
            for name, value in observation.items()
        }

    @staticmethod
    def _zero(weights: nn.Parameter) -> None:
        assert weights.grad is not None
        weights.grad.zero_()


def critic_loss(said: Tensor, target: Tensor) -> Tensor:
    """How far critics f32[E,n] are from the target f32[n]."""
    return (said - target).square().mean()


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


def random_shift(images: Tensor, largest: int, generator: torch.Generator) -> Tensor:
    """Images uint8[n,…,H,W,3], each moved by up to so many pixels both ways; what comes in repeats the edge.

    All views of a sample that are in one array move alike.
    """
    if not largest or not images.numel():
        return images
    height, width = images.shape[-3:-1]
    moves = torch.randint(-largest, largest + 1, (len(images), 2), generator=generator)
    rows = (torch.arange(height) + moves[:, :1]).clamp_(0, height - 1)
    columns = (torch.arange(width) + moves[:, 1:]).clamp_(0, width - 1)
    flat = images.reshape(len(images), -1, height, width, 3)
    number = torch.arange(len(images))[:, None, None]
    moved = flat.permute(0, 2, 3, 1, 4)[number, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2, 4).reshape(images.shape)
