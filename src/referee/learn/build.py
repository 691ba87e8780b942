"""What a Trainer is made of, as a configuration asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from referee.config import Config
from referee.config.learning import ActorConfig, PPOConfig
from referee.envs import RefereeVectorEnv
from referee.learn.asynchronous import AsyncSource
from referee.learn.environments import warn_of_another_task, warn_of_reward
from referee.learn.memory import make_memory
from referee.learn.source import InlineSource, RolloutSource, WorkerSource
from referee.rewards.source import RewardSource, make_reward
from referee.rl.learner import Learner
from referee.rl.policy import Policy, PolicySpec
from referee.rl.ppo import PPO
from referee.rl.sac import SAC
from referee.rl.squashed import SquashedPolicy

if TYPE_CHECKING:
    from referee.learn.trainer import Trainer


def make_source(config: Config, folder: Path) -> RolloutSource:
    """Who acts: this process, another one side by side with it, or workers that a cluster places."""
    if config.runner.background.enabled:
        return AsyncSource(config, folder)
    placed = config.cluster.backend != "local" or config.cluster.component_placement is not None
    return WorkerSource(config, folder) if placed else InlineSource(config, folder)


def policy_spec(config: Config, env: RefereeVectorEnv) -> PolicySpec:
    """What the policy is."""
    assert isinstance(config.actor, ActorConfig)
    model, squashed = config.actor.model, config.algorithm.name == "sac"
    return PolicySpec.of(env, model.model_type, model.hidden_dims, model.initial_log_std, squashed=squashed)


def make_rewards(config: Config, env: RefereeVectorEnv, workers: int) -> tuple[RewardSource, ...]:
    """The reward, one for each of those who act; they share a model."""
    assert config.env.train is not None
    warn_of_reward(config)
    steps, hold = config.algorithm.rollout_steps, config.env.train.success_hold_steps
    reward = make_reward(config.reward, env, steps, hold=hold)
    if reward.artifact is not None:
        warn_of_another_task(reward.artifact, config.env.train.task, env.task_description)
    return (reward,) if workers == 1 else tuple(reward.share(env.num_envs // workers) for _ in range(workers))


def make_learner(trainer: Trainer) -> Learner:
    """PPO or SAC."""
    config, policy = trainer.config, trainer.policy
    assert isinstance(config.actor, ActorConfig)
    generator = torch.Generator().manual_seed(config.runner.seed)
    if isinstance(config.algorithm, PPOConfig):
        assert isinstance(policy, Policy)
        return PPO(policy, config.algorithm, config.actor, generator)
    assert isinstance(policy, SquashedPolicy)
    refines = trainer.refinement is not None and trainer.refinement.refiner is not None
    memory = make_memory(config, trainer.env, policy.spec, trainer.reward, trainer.folder, refines=refines)
    cloned = config.actor.model.model_path is None and config.algorithm.bc_warmup.episodes
    return SAC(
        policy, config.algorithm, config.actor, generator, memory,
        bc_config=config.algorithm.bc_warmup if cloned else None,
        spare_cores=int(config.runner.background.enabled),  # for those who act
    )  # fmt: skip
