"""What the schema cannot see of a policy's training: sizes and keys that must fit each other."""

from __future__ import annotations

import math

from referee.config import Config, FrankaEnvConfig
from referee.config.batches import minibatch_size
from referee.config.learning import ActorConfig, PPOConfig, SACConfig
from referee.config.schema import EnvConfig
from referee.envs.franka.setup import Setup
from referee.errors import ConfigError
from referee.learn.asynchronous import PIECES
from referee.learn.evaluation import EVAL_SEED
from referee.rewards.window_model import check_trend
from referee.workers.env import SEEDS_PER_RUN


def check(config: Config) -> None:
    """Refuse what cannot work, before anything is allocated or written."""
    train, actor = config.env.train, config.actor
    assert train is not None and config.env.eval is not None and isinstance(actor, ActorConfig)  # the recipe needs them
    samples = train.num_envs * config.algorithm.rollout_steps
    _check_batch(config, actor, samples)
    _check_seeds(config, train)
    _check_observations(actor, train)
    if config.runner.task_type == "text":
        raise ConfigError("runner.task_type=text: policies here move robots; `referee score-text` pays for texts")
    check_trend(config)
    _check_endings(config, train)
    _check_learner(config, samples)
    if isinstance(train, FrankaEnvConfig):
        _check_arm(config, train)
    for name in ("task", "obs_mode", "control_mode", "encoder"):
        here, there = getattr(train, name, None), getattr(config.env.eval, name, None)
        if here != there:
            raise ConfigError(f"env.eval.{name}={there}, but env.train.{name}={here}: make them the same")


def _check_batch(config: Config, actor: ActorConfig, samples: int) -> None:
    if isinstance(config.algorithm, PPOConfig) and actor.global_batch_size and samples % actor.global_batch_size:
        raise ConfigError(
            f"actor.global_batch_size={actor.global_batch_size} does not divide the {samples} samples of a rollout "
            f"(env.train.num_envs × algorithm.rollout_steps): choose a divisor, e.g. {minibatch_size(samples)}, or "
            "leave it out"
        )


def _check_seeds(config: Config, train: EnvConfig) -> None:
    if SEEDS_PER_RUN * config.runner.seed + train.num_envs > EVAL_SEED:
        raise ConfigError(
            f"runner.seed={config.runner.seed} would train on the episodes of evaluation: choose a seed below "
            f"{(EVAL_SEED - train.num_envs) // SEEDS_PER_RUN + 1}"
        )


def _check_observations(actor: ActorConfig, train: EnvConfig) -> None:
    if actor.model.model_type == "cnn" and train.obs_mode == "state":
        raise ConfigError("actor.model.model_type=cnn needs images: set env.train.obs_mode=rgb (or state+rgb)")
    if train.encoder is not None and (train.obs_mode == "state" or actor.model.model_type == "cnn"):
        raise ConfigError(
            "env.train.encoder makes states of images: it needs obs_mode=rgb (or state+rgb) and model_type=mlp"
        )
    if actor.model.model_type == "mlp" and train.obs_mode != "state" and train.encoder is None:
        raise ConfigError(
            f"actor.model.model_type=mlp reads state only: set env.train.obs_mode=state, not {train.obs_mode}"
        )


def _check_endings(config: Config, train: EnvConfig) -> None:
    """Who ends an episode: the truth, a model, or nobody."""
    reward = config.reward
    if reward.use_reward_model and train.terminate_on_success and reward.terminate_on != "truth":
        raise ConfigError(
            "env.train.terminate_on_success=true lets the truth end episodes beside a reward model: "
            "set env.train.terminate_on_success=false, or say reward.terminate_on=truth"
        )
    if reward.use_reward_model and reward.terminate_on == "truth" and not train.terminate_on_success:
        raise ConfigError("reward.terminate_on=truth needs env.train.terminate_on_success=true")
    paid = reward.use_reward_model
    ended = train.terminate_on_success or (paid and reward.terminate_on == "model")
    if train.success_hold_steps > 1 and not ended:
        raise ConfigError(
            f"env.train.success_hold_steps={train.success_hold_steps} changes nothing where no success ends one: "
            f"set it to 1, or {'reward.terminate_on=model' if paid else 'env.train.terminate_on_success=true'}"
        )


def _check_learner(config: Config, samples: int) -> None:
    algorithm = config.algorithm
    if isinstance(algorithm, SACConfig) and algorithm.critic_subset > algorithm.critics:
        raise ConfigError(
            f"algorithm.critic_subset={algorithm.critic_subset} critics cannot be drawn from {algorithm.critics} "
            "(algorithm.critics): lower it"
        )
    if config.runner.background.enabled and isinstance(algorithm, PPOConfig):
        raise ConfigError("runner.background.enabled=true needs a learner that remembers: use algorithm.name=sac")
    if config.runner.background.enabled and isinstance(algorithm, SACConfig):
        due, each = math.ceil(algorithm.utd * samples), config.runner.background.publish_interval
        if due > PIECES * each:
            raise ConfigError(
                f"algorithm.utd={algorithm.utd:g} asks for {due} updates per rollout of {samples} steps, but with "
                f"runner.background.publish_interval={each} at most {PIECES * each} are made: raise it to "
                f"{math.ceil(due / PIECES)}"
            )


def _check_arm(config: Config, train: FrankaEnvConfig) -> None:
    Setup.of(train)
    if train.robot.driver == "twin":
        return
    if config.runner.eval_episodes:
        raise ConfigError(
            f"runner.eval_episodes={config.runner.eval_episodes}, but there is one arm, and it learns: set it to 0 "
            "(env/success_once tells how its own episodes end)"
        )
    refine = config.reward.refine
    if config.reward.use_reward_model and refine.enabled and (refine.labeller == "truth" or refine.mine):
        key = "labeller=truth" if refine.labeller == "truth" else f"mine={refine.mine}"
        raise ConfigError(
            f"reward.refine.{key} asks a simulation, and an arm is none: set reward.refine.labeller=terminal (or log) "
            "and reward.refine.mine=0"
        )
    shown = isinstance(config.algorithm, SACConfig) and config.algorithm.demos.path is not None
    if config.algorithm.bc_warmup.episodes and not shown:
        raise ConfigError(
            "algorithm.bc_warmup clones demonstrations, and an arm has no scripted expert: record some "
            "(referee run realworld_collect_data) and name them by algorithm.demos.path"
        )
