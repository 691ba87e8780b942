"""Proximal policy optimisation, from top to bottom: advantages, loss, update."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from referee.config.learning import ActorConfig, PPOConfig
from referee.errors import RefereeError
from referee.rewards.source import RewardSource
from referee.rl import checkpoint
from referee.rl.batch import Batch, Parts
from referee.rl.gae import gae
from referee.rl.learner import Pace, State
from referee.rl.optim import DivergedError, flatten, set_rate, step
from referee.rl.policy import Policy, Tensors
from referee.rl.rollout import Rollout
from referee.rl.threads import Threads
from referee.rl.trust import TrustRegion


class PPO:
    """Learns a policy from rollouts. All randomness comes from `generator`.

    >>> ppo = PPO(policy, config.algorithm, config.actor, torch.Generator().manual_seed(0))
    >>> ppo.remember(rollout)
    >>> metrics = ppo.learn(progress=0.0, iteration=0)
    """

    off_policy = keeps_frames = False
    demos = None
    updates = 0

    def __init__(self, policy: Policy, config: PPOConfig, actor: ActorConfig, generator: torch.Generator) -> None:
        self.policy = policy
        self.config = config
        self.actor = actor
        self.generator = generator
        self.threads = Threads(actor.num_threads)
        assert actor.global_batch_size is not None  # `config.load` decides it
        self._batch_size = actor.global_batch_size
        self.weights = flatten(policy.parameters())
        self.optimizer = torch.optim.Adam([self.weights], lr=actor.optim.lr, eps=1e-5, fused=True)
        self._acting = [parameter for name, parameter in policy.named_parameters() if not name.startswith("critic.")]
        self.trust = TrustRegion(self._acting, config.target_kl) if config.target_kl else None

    def remember(self, rollout: Rollout) -> None:
        """See Learner: the next `learn` is from this one."""
        self._rollout = rollout

    def learn(self, *, progress: float, iteration: int, pace: Pace | None = None) -> dict[str, float]:
        """See Learner."""
        warmup = self.config.critic_warmup
        if iteration == warmup > 0:
            self.forget_moments()
        with self.threads.at_work(1.0):
            return self.update(self._rollout, progress=progress, critic_only=iteration < warmup)

    def update(self, rollout: Rollout, *, progress: float = 0.0, critic_only: bool = False) -> dict[str, float]:
        """Learn from one rollout.

        progress: the share of training done, in 0..1, for the learning rate.
        critic_only: the policy stays as it is; for a critic that must first learn what is paid now.
        """
        config, actor = self.config, self.actor
        if len(versions := np.unique(rollout.versions)) > 1:
            raise RefereeError(f"versions {versions.tolist()} of the reward model paid in one batch: score it anew")
        trust = None if critic_only else self.trust
        rate = set_rate([self.optimizer], actor.optim, progress, share=1.0 if trust is None else trust.share)
        batch = self.prepare(rollout)
        rows: list[dict[str, float]] = []
        stopped, undone = False, False
        if trust is not None:
            trust.begin()
        for _ in range(config.update_epochs):
            for minibatch in self._minibatches(batch):
                parts = self.backward(minibatch)
                if trust is not None and not trust.allows_step(parts.log_ratio):
                    stopped = True
                    break
                if critic_only:
                    for parameter in self._acting:
                        assert parameter.grad is not None
                        parameter.grad.zero_()
                step(self.optimizer, self.weights, actor.optim, loss="PPO")
            rows.append(self.row(parts))  # of the epoch's last minibatch: enough to watch
            if stopped:
                break
        if trust is not None:
            undone = trust.end(planned=config.update_epochs * -(-len(batch) // self._batch_size))
        if self.policy.norm is not None and config.normalise_observations and not config.freeze_normaliser:
            # Only now: the densities above belong to the eyes with which the rollout was made.
            self.policy.norm.update(batch.observations["states"])
        spread = batch.returns.var()
        return {
            **{name: float(np.mean([row[name] for row in rows])) for name in rows[0]},
            "entropy": float(self.policy.entropy().detach()),
            "action_std": float(torch.exp(self.policy.log_std.detach()).mean()),
            "explained_variance": float(1 - (batch.returns - batch.values).var() / spread) if spread > 0 else math.nan,
            "kl_stop": stopped,
            "kl_undone": undone,
            "lr": rate,
        }

    def forget_moments(self) -> None:
        """Begin the optimiser anew: after `critic_only`, its moments know nothing of the policy."""
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()

    def rescore(self, reward: RewardSource) -> int:
        """See Learner: nothing is remembered."""
        return 0

    def save_state(self) -> State:
        """Moments of the optimiser; states of generators and of the trust region."""
        arrays = {"shuffle": self.generator.get_state().numpy()}
        if self.trust is not None:
            arrays["trust_share"] = np.array(self.trust.share)
        return checkpoint.optimizer_tensors(self.optimizer), arrays

    def restore_state(self, tensors: Mapping[str, Tensor], arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from a saved state."""
        checkpoint.restore_optimizer(self.optimizer, dict(tensors))
        self.generator.set_state(torch.from_numpy(arrays["shuffle"]))
        if self.trust is not None and "trust_share" in arrays:
            self.trust.share = float(arrays["trust_share"])

    @torch.no_grad()
    def prepare(self, rollout: Rollout) -> Batch:
        """Densities, values, advantages and returns of a rollout, under the policy that made it."""
        _check_finite(rollout)
        observations = rollout.tensors()
        actions = torch.from_numpy(rollout.actions.reshape(rollout.steps * rollout.num_envs, -1))
        log_probs, values = self._evaluate(observations, actions)
        ends = self._evaluate(rollout.final_tensors())[1].numpy()
        table = values.numpy().reshape(rollout.steps, rollout.num_envs)
        following = np.concatenate([table[1:], ends[None, : rollout.num_envs]])
        for final, value in zip(rollout.finals, ends[rollout.num_envs :], strict=True):
            following[final.step, final.env] = value
        advantages, returns = gae(
            rollout.rewards,
            table,
            following,
            rollout.terminated,
            rollout.truncated,
            gamma=self.config.gamma,
            gae_lambda=self.config.gae_lambda,
            bootstrap_type=self.config.bootstrap_type,
        )
        flat = (torch.from_numpy(each.reshape(-1)) for each in (advantages, returns))
        return Batch(observations, actions, log_probs, values, *flat)

    def backward(self, batch: Batch) -> Parts:
        """The gradient of `loss` on a minibatch, into the weights."""
        assert self.weights.grad is not None
        self.weights.grad.zero_()
        loss, parts = self.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return parts

    def loss(self, batch: Batch) -> tuple[Tensor, Parts]:
        """The clipped surrogate plus value and entropy terms, and what it is made of."""
        config = self.config
        log_probs, values = self.policy.evaluate(batch.observations, batch.actions)
        advantages = batch.advantages
        if config.normalise_advantages:
            deviation, mean = torch.std_mean(advantages)
            advantages = (advantages - mean) / (deviation + 1e-8)
        log_ratio = log_probs - batch.log_probs
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1.0 - config.clip_ratio, 1.0 + config.clip_ratio)
        policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
        if config.value_clip is not None:
            values = batch.values + (values - batch.values).clamp(-config.value_clip, config.value_clip)
        value_loss = nn.functional.mse_loss(values, batch.returns)
        loss = policy_loss + config.value_coef * value_loss
        if config.entropy_coef:
            loss = loss - config.entropy_coef * self.policy.entropy()
        return loss, Parts(policy_loss, log_ratio, value_loss)

    @torch.no_grad()
    def row(self, parts: Parts) -> dict[str, float]:
        """A loss as numbers."""
        ratio = parts.log_ratio.exp()
        loss = parts.policy_loss + self.config.value_coef * parts.value_loss
        return {
            "loss": float(loss - self.config.entropy_coef * self.policy.entropy()),
            "policy_loss": float(parts.policy_loss),
            "value_loss": float(parts.value_loss),
            "approx_kl": float(((ratio - 1.0) - parts.log_ratio).mean()),
            "clip_share": float(((ratio - 1.0).abs() > self.config.clip_ratio).float().mean()),
        }

    def _evaluate(self, observations: Tensors, actions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`Policy.evaluate` in chunks, so that images of a whole rollout need not fit as floats."""
        count, size = len(next(iter(observations.values()))), 4096
        log_probs, values = [], []
        for start in range(0, count, size):
            part = {name: value[start : start + size] for name, value in observations.items()}
            if actions is None:
                values.append(self.policy.value(part))
                continue
            log_prob, value = self.policy.evaluate(part, actions[start : start + size])
            log_probs.append(log_prob)
            values.append(value)
        return (torch.cat(log_probs) if actions is not None else torch.empty(0)), torch.cat(values)

    def _minibatches(self, batch: Batch) -> Iterator[Batch]:
        shuffled = batch.take(torch.randperm(len(batch), generator=self.generator))
        for start in range(0, len(batch), self._batch_size):
            yield shuffled.slice(start, start + self._batch_size)


def _check_finite(rollout: Rollout) -> None:
    """Bad numbers are named where they enter, not where the loss feels them."""
    for name, array in {"reward": rollout.rewards, "action": rollout.actions, **rollout.observations}.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            step, env = np.argwhere(~np.isfinite(array))[0, :2]
            raise DivergedError(
                f"{name} of environment {env} at rollout step {step} is not finite: look there first; "
                "the last good checkpoint is kept"
            )
