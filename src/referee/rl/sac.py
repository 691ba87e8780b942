"""Soft actor-critic, from top to bottom: targets, critics, policy, temperature. With demonstrations it is RLPD."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from referee.config.learning import ActorConfig, BCConfig, SACConfig
from referee.envs.contract import IMAGES
from referee.rewards import rules
from referee.rewards.source import RewardSource
from referee.rl import bc, checkpoint
from referee.rl.critics import Critics
from referee.rl.learner import Pace, State
from referee.rl.optim import flatten, set_rate, step
from referee.rl.policy import Tensors
from referee.rl.replay import Replay, Transitions
from referee.rl.rollout import Rollout
from referee.rl.sac_gradient import HandGradients
from referee.rl.squashed import SquashedPolicy
from referee.rl.threads import Threads

AT_ONCE = 64
"""Batches that are drawn together, where they hold no pictures."""


@dataclass(frozen=True)
class Memory:
    """What an off-policy learner remembers."""

    replay: Replay
    demos: Replay | None = None
    cameras: tuple[str, ...] | None = None
    """Of the pictures, where they are what the policy observes."""


class SAC:
    """Learns a squashed policy from what it remembers. All randomness comes from `random` and `generator`.

    >>> sac = SAC(policy, config.algorithm, config.actor, torch.Generator().manual_seed(0), Memory(replay))
    >>> sac.remember(rollout)
    >>> metrics = sac.learn(progress=0.0, iteration=0)
    """

    off_policy = True

    def __init__(
        self, policy: SquashedPolicy, config: SACConfig, actor: ActorConfig, generator: torch.Generator,
        memory: Memory | None = None, *, bc_config: BCConfig | None = None, spare_cores: int = 0,
    ) -> None:  # fmt: skip
        """memory: needed to `remember` and `learn`, not for `update` alone.

        bc_config: how to clone the demonstrations, where the first policy is a clone. spare_cores: that others need.
        """
        self.policy, self.config, self.actor, self.generator = policy, config, actor, generator
        self.threads = Threads(actor.num_threads, spare=spare_cores)
        self._memory, self._bc_config = memory, bc_config
        self._pending_updates, self._critic_only_updates = 0.0, 0
        self.settling = config.settle_steps > 0
        """Whether the first policy acts on, and nothing is learned yet."""
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

    @property
    def replay(self) -> Replay:
        """What happened."""
        assert self._memory is not None  # given to whoever trains
        return self._memory.replay

    @property
    def demos(self) -> Replay | None:
        """See Learner."""
        return None if self._memory is None else self._memory.demos

    @property
    def keeps_frames(self) -> bool:
        """See Learner; frames that the policy observes are kept in any case."""
        return self.replay.album is not None and not self.replay.seen

    # --- remembering ---

    def remember(self, rollout: Rollout) -> None:
        """See Learner; what a person did in it counts as demonstrated, too."""
        self.replay.add(rollout, rollout.first_env)
        if self.demos is not None and rollout.intervened.any():
            self.demos.add_stretches(rollout)
        if self.replay.steps >= self.config.random_steps:
            self._pending_updates += self.config.utd * rollout.steps * rollout.num_envs
        if not self.settling:
            self.update_normalizer(torch.from_numpy(rollout.observations["states"]))
        elif self.replay.steps >= self.config.settle_steps:
            self._finish_warmup()

    def update_normalizer(self, states: Tensor) -> None:
        """Let the normaliser take in states f32[…,d]."""
        if self.policy.norm is not None and self.config.normalise_observations:
            self.policy.norm.update(states)

    def _finish_warmup(self) -> None:
        """The first policy has shown where it comes: see that, clone with these eyes, and let the critics catch up."""
        self.settling = False
        if "states" in self.policy.inputs:
            self.update_normalizer(self.replay.steps_shown()[0]["states"])
        if self.demos is not None and self._bc_config is not None:
            bc.clone(self.policy, *self.demos.steps_shown(), self._bc_config, self.generator)
        self._critic_only_updates = int(self._pending_updates)

    def rescore(self, reward: RewardSource) -> int:
        """See Learner."""
        options, frames = reward.options, 0
        score = partial(reward.rescore, cameras=None if self._memory is None else self._memory.cameras)

        def mix(env: np.ndarray, model: np.ndarray, truth: np.ndarray) -> np.ndarray:
            return rules.combine(env, model, options, true_success=truth)

        with self.threads.all_at_work():
            for memory in (self.replay, self.demos):
                if memory is not None:
                    every = options.reward_mode == "per_step"
                    frames += memory.rescore(score, mix, every=every, version=reward.version)
        return frames

    # --- learning ---

    def learn(self, *, progress: float, iteration: int, pace: Pace | None = None) -> dict[str, float]:
        """See Learner: as much as the remembered steps allow."""
        rate = self.set_rate(progress)
        due = self._due(None if pace is None else pace.most)
        every = max(1, due) if pace is None else pace.every
        metrics: dict[str, float] = {}
        for done in range(0, due, every):
            metrics |= self._learn(min(every, due - done))
            if pace is not None:
                pace.publish()
        memory = {"replay_steps": float(self.replay.steps), "replay_mb": self.replay.nbytes / 1e6}
        return {**metrics, **memory, "lr": rate}

    def _due(self, most: int | None) -> int:
        """Updates that the steps remembered so far allow, to be done now; beyond `most`, they are given up."""
        if self.settling:
            return 0
        due, self._pending_updates = int(self._pending_updates), self._pending_updates % 1.0
        return due if most is None else min(due, most)

    def _learn(self, updates: int) -> dict[str, float]:
        """So many updates; the first ones after settling are of the critics alone."""
        alone = min(updates, self._critic_only_updates)
        self._critic_only_updates -= alone
        metrics: dict[str, float] = {}
        with self.threads.at_work(updates):
            for count, critic_only in ((alone, True), (updates - alone, False)):
                if count:
                    metrics |= self.update(self.replay, self.demos, count, critic_only=critic_only)
        return metrics

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
            seen, worth, found = self.update_critics(batch)
            if not critic_only and self.updates % self.config.policy_interval == 0:
                found |= self.update_policy(seen, batch, worth)
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

    def update_critics(self, batch: Transitions) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
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

    def update_policy(self, seen: Tensor, batch: Transitions, worth: Tensor) -> dict[str, Tensor]:
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

    # --- keeping ---

    def save_state(self) -> State:
        """Weights and moments; states of generators."""
        tensors = {f"critics.{name}": value for name, value in self.critics.state_dict().items()}
        tensors |= {f"targets.{name}": value for name, value in self.targets.state_dict().items()}
        tensors["log_temperature"] = self.log_temperature.detach()
        for name, optimizer in self.optimizers().items():
            tensors |= {f"{name}/{key}": value for key, value in checkpoint.optimizer_tensors(optimizer).items()}
        counters = (
            self.updates, self.policy_updates, self._pending_updates, self._critic_only_updates, self.settling
        )  # fmt: skip
        arrays = {
            "shuffle": self.generator.get_state().numpy(),
            "draw": checkpoint.generator_state(self.random),
            "learner.counters": np.array(counters),
        }
        return {name: value.contiguous().clone() for name, value in tensors.items()}, arrays

    def restore_state(self, tensors: Mapping[str, Tensor], arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from a saved state."""
        for name, module in (("critics.", self.critics), ("targets.", self.targets)):
            module.load_state_dict({k.removeprefix(name): v for k, v in tensors.items() if k.startswith(name)})
        self.log_temperature.data.copy_(tensors["log_temperature"])
        for name, optimizer in self.optimizers().items():
            own = {k.removeprefix(f"{name}/"): v for k, v in tensors.items() if k.startswith(f"{name}/")}
            checkpoint.restore_optimizer(optimizer, own)
        self.generator.set_state(torch.from_numpy(arrays["shuffle"]))
        checkpoint.restore_generator(self.random, arrays["draw"])
        updates, policy_updates, self._pending_updates, alone, settling = arrays["learner.counters"].tolist()
        self.updates, self.policy_updates = int(updates), int(policy_updates)
        self._critic_only_updates, self.settling = int(alone), bool(settling)

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
