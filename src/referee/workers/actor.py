"""The actor worker: learns the policy from rollouts."""

from __future__ import annotations

import os

import torch

from referee.config.schema import ActorConfig, PPOConfig
from referee.rewards import RewardOptions, Scored, combine
from referee.rl.policy import Policy
from referee.rl.ppo import PPO
from referee.rl.rollout import Rollout


class ActorWorker:
    """Owns the optimiser. Many threads help an update, but beside the stepping pool they only get in its way."""

    def __init__(self, policy: Policy, algorithm: PPOConfig, actor: ActorConfig, *, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.learner = PPO(policy, algorithm, actor, self.generator)
        self.threads = actor.num_threads or os.cpu_count() or 1

    def update_rewards(self, rollout: Rollout, scored: Scored, options: RewardOptions) -> None:
        """Replace the environment's rewards of a rollout by what is really paid: see docs/rewards.md."""
        bonus = rollout.success & scored.judged if options.gt_success_bonus else None
        rollout.versions[:] = scored.version
        rollout.rewards[:] = combine(rollout.rewards, scored.rewards, options, true_success=bonus)

    def update(self, rollout: Rollout, *, progress: float, iteration: int) -> dict[str, float]:
        """One iteration of learning; returns the metrics."""
        warmup = self.learner.config.critic_warmup
        if iteration == warmup > 0:
            self.learner.forget_moments()
        torch.set_num_threads(self.threads)
        try:
            return self.learner.update(rollout, progress=progress, critic_only=iteration < warmup)
        finally:
            torch.set_num_threads(1)
