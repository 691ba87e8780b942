"""The actor worker: learns the policy from rollouts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from referee.config.learning import ActorConfig, PPOConfig
from referee.rewards import RewardOptions, Scored, rules
from referee.rl import checkpoint
from referee.rl.policy import Policy
from referee.rl.ppo import PPO
from referee.rl.rollout import Rollout
from referee.workers.threads import Threads


class ActorWorker:
    """Owns the optimiser."""

    def __init__(self, policy: Policy, algorithm: PPOConfig, actor: ActorConfig, *, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.learner = PPO(policy, algorithm, actor, self.generator)
        self.threads = Threads(actor.num_threads)

    def update_rewards(self, rollout: Rollout, scored: Scored, options: RewardOptions) -> None:
        """Replace the environment's rewards of a rollout by what is really paid: see docs/rewards.md."""
        pay_rollout(rollout, scored, options)

    def update(self, rollout: Rollout, *, progress: float, iteration: int) -> dict[str, float]:
        """One iteration of learning; returns the metrics."""
        warmup = self.learner.config.critic_warmup
        if iteration == warmup > 0:
            self.learner.forget_moments()
        with self.threads.at_work(1.0):
            return self.learner.update(rollout, progress=progress, critic_only=iteration < warmup)

    def save_state(self) -> tuple[dict[str, torch.Tensor], dict[str, np.ndarray]]:
        """Moments of the optimiser; states of generators and of the trust region."""
        arrays = {"shuffle": self.generator.get_state().numpy()}
        if self.learner.trust is not None:
            arrays["trust_share"] = np.array(self.learner.trust.share)
        return checkpoint.optimizer_tensors(self.learner.optimizer), arrays

    def restore_state(self, tensors: Mapping[str, torch.Tensor], arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from a saved state."""
        checkpoint.restore_optimizer(self.learner.optimizer, dict(tensors))
        self.generator.set_state(torch.from_numpy(arrays["shuffle"]))
        if self.learner.trust is not None and "trust_share" in arrays:
            self.learner.trust.share = float(arrays["trust_share"])


def pay_rollout(rollout: Rollout, scored: Scored, options: RewardOptions) -> None:
    """What is paid for each step of a rollout, in place of the environment's rewards."""
    true_success = rollout.success & scored.judged
    rollout.versions[:] = scored.version
    rollout.rewards[:] = rules.combine(rollout.rewards, scored.rewards, options, true_success=true_success)
