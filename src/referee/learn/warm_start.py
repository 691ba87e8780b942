"""The first policy of a run: taken over from another run, cloned from demonstrations, or fresh."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console

from referee.config.learning import ActorConfig, PolicyModelConfig
from referee.envs.policies import demonstrations
from referee.envs.tasks import task_key
from referee.errors import ConfigError
from referee.rl import bc, checkpoint
from referee.rl.policy import Policy, Tensors

if TYPE_CHECKING:
    from referee.learn.trainer import Trainer

DEMO_SEED = 1_500_000


def first_policy(trainer: Trainer, console: Console) -> None:
    """Make it."""
    if _take_over(trainer, console):
        return
    wanted = trainer.config.algorithm.bc_warmup
    _update_normalizer(trainer, trainer.policy.tensors(trainer.source.env.observation))
    if trainer.learner.demos is not None:
        observations, actions = trainer.learner.demos.steps_shown()
    elif wanted.episodes:
        shown, done = demonstrations(
            trainer.evaluation.env, wanted.episodes, noise=wanted.noise, seed=DEMO_SEED + trainer.config.runner.seed
        )
        observations, actions = trainer.policy.tensors(shown), torch.from_numpy(done)
    else:
        return
    _update_normalizer(trainer, observations)
    if not wanted.episodes:
        return
    losses = bc.clone(trainer.policy, observations, actions, wanted, trainer.learner.generator)
    trainer.evaluate()
    console.print(
        f"behaviour cloning of {len(actions):,} demonstrated steps: loss {losses[0]:.3f} → {losses[-1]:.3f}, "
        f"{trainer.evaluation.summary()}"
    )


def _update_normalizer(trainer: Trainer, observations: Tensors) -> None:
    """Let the normaliser take in observations."""
    if trainer.policy.norm is not None and trainer.config.algorithm.normalise_observations:
        trainer.policy.norm.update(observations["states"])


def _take_over(trainer: Trainer, console: Console) -> bool:
    """Start from the policy of another run, where one is named."""
    config = trainer.config
    assert isinstance(config.actor, ActorConfig) and config.env.train is not None
    place = config.actor.model.model_path
    if place is None:
        return False
    folder = checkpoint.find(Path(place))
    stored = checkpoint.load(folder)
    train = config.env.train
    checkpoint.restore_policy(trainer.policy, stored, folder, task=train.task, key=task_key(train))
    _change(trainer, config.actor.model)
    trainer.evaluate()
    console.print(f"starting from {folder}: {trainer.evaluation.summary()}", soft_wrap=True)
    return True


def _change(trainer: Trainer, wanted: PolicyModelConfig) -> None:
    """Let a policy that was taken over go on otherwise than it was, where asked for."""
    noise, fresh = wanted.start_log_std, wanted.fresh_critic
    if noise is None and not fresh:
        return
    if not isinstance(trainer.policy, Policy):
        key = "fresh_critic" if noise is None else "start_log_std"
        raise ConfigError(f"actor.model.{key} is for PPO: SAC takes over no critic, and learns a spread per state")
    if noise is not None:
        trainer.policy.log_std.data.fill_(noise)
    if fresh:
        trainer.policy.forget_values()
