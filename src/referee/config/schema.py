"""Every configuration key, with its type, default, limits and meaning: the documentation of all keys.

A later section adds a dataclass here and, where it brings a runner, a row in RECIPES; nothing else changes.
"""
# ruff: noqa: RUF009 -- key() makes a dataclasses.field; nothing mutable is shared

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any

REQUIRED = MISSING  # as a default: the key has to be given


@dataclass(frozen=True)
class Key:
    """What the schema says about one key beside its type and default; see `key`."""

    help: str
    choices: tuple[Any, ...] | None = None
    low: float | None = None
    high: float | None = None
    only_if: str | None = None
    tag: bool = False


def key(
    default: Any,
    help: str,
    *,
    choices: tuple[Any, ...] | None = None,
    low: float | None = None,
    high: float | None = None,
    only_if: str | None = None,
    tag: bool = False,
) -> Any:
    """Declare one key.

    default: the value, a dataclass for a section, or REQUIRED.
    choices: the values allowed; for a list, the entries allowed, each at most once.
    low, high: bounds, both included; for a list, of its length.
    only_if: when the key acts, as "policy=expert", "film" (is on), or several joined by " or "; a name
        without a dot is a sibling, one with dots is absolute. A key set without effect is reported.
    tag: the value of this key chooses the dataclass of its section (see EnvConfig).
    """
    meta = {"key": Key(help, choices, low, high, only_if, tag)}
    if isinstance(default, type):
        return field(default_factory=default, metadata=meta)
    return field(default=default, metadata=meta)


@dataclass(frozen=True)
class Recipe:
    """What a runner takes from the configuration: sections it reads, and those it cannot do without."""

    reads: tuple[str, ...]
    needs: tuple[str, ...] = ()


RECIPES: Mapping[str, Recipe] = {
    "evaluate": Recipe(reads=("runner", "env.eval"), needs=("env.eval",)),
    "demo": Recipe(reads=("runner", "env.eval"), needs=("env.eval",)),
    "train_policy": Recipe(
        reads=("runner", "env.train", "env.eval", "algorithm", "actor"), needs=("env.train", "env.eval")
    ),
}


@dataclass(frozen=True, kw_only=True)
class LoggerConfig:
    """Where a run writes."""

    log_path: str | None = key(None, "directory of the run; null = logs/<timestamp>-<preset>")
    experiment_name: str | None = key(None, "name shown in logs; null = the preset's name")
    project_name: str = key("referee", "project in W&B", only_if="runner.recipe=train_policy")
    logger_backends: tuple[str, ...] = key(
        ("tensorboard",),
        "where metrics go besides metrics.jsonl",
        choices=("tensorboard", "wandb"),
        only_if="runner.recipe=train_policy",
    )


@dataclass(frozen=True, kw_only=True)
class RunnerConfig:
    """What `referee run` starts, and for how long."""

    recipe: str = key(REQUIRED, "the runner to start", choices=tuple(RECIPES))
    seed: int = key(0, "seed of everything that is drawn", low=0)
    policy: str = key(
        "expert",
        "who acts: the scripted expert or uniform noise",
        choices=("expert", "random"),
        only_if="recipe=evaluate",
    )
    expert_noise: float = key(0.0, "standard deviation added to the expert's actions", low=0, only_if="policy=expert")
    num_episodes: int = key(64, "episodes to run", low=1, only_if="recipe=evaluate or recipe=demo")
    film: bool = key(True, "write a film of some episodes")
    film_episodes: int = key(4, "episodes in the film", low=1, only_if="film")
    max_steps: int = key(1_000_000, "environment steps to train for", low=1, only_if="recipe=train_policy")
    max_minutes: float | None = key(
        None, "stop after so many minutes of training; null = never", low=0, only_if="recipe=train_policy"
    )
    eval_interval: int = key(10, "iterations between evaluations", low=1, only_if="recipe=train_policy")
    eval_episodes: int = key(256, "episodes of each evaluation", low=1, only_if="recipe=train_policy")
    target_success: float | None = key(
        None,
        "stop once an evaluation ends in so much success; null = never",
        low=0,
        high=1,
        only_if="recipe=train_policy",
    )
    save_interval: int = key(20, "iterations between checkpoints", low=1, only_if="recipe=train_policy")
    keep_every: int | None = key(
        None,
        "keep each checkpoint of so many iterations; null = only last and best",
        low=1,
        only_if="recipe=train_policy",
    )
    resume_dir: str | None = key(None, "run or checkpoint to go on from; null = start", only_if="recipe=train_policy")
    logger: LoggerConfig = key(LoggerConfig, "where the run writes")


@dataclass(frozen=True, kw_only=True)
class RandomiseConfig:
    """Domain randomisation: how far looks vary from episode to episode; 0 = not at all."""

    light: float = key(0.0, "strength of changes to the light", low=0, high=1)
    colours: float = key(0.0, "strength of changes to the colours", low=0, high=1)
    camera: float = key(0.0, "strength of camera jitter", low=0, high=1)
    distractors: int = key(0, "objects that mean nothing", low=0, high=4)
    seed: int | None = key(
        None,
        "seed of the looks; null = the env's own seed",
        low=0,
        only_if="light or colours or camera or distractors",
    )


@dataclass(frozen=True, kw_only=True)
class DataCollectionConfig:
    """Recording of episodes while an environment is used."""

    enabled: bool = key(False, "record every finished episode")
    save_dir: str | None = key(None, "where to; null = collected_data in the run's directory", only_if="enabled")
    export_format: str = key(
        "native",
        "native; pickle: a file per episode; pickle_frames: success/, failure/; npy: positive/, negative/; lerobot",
        choices=("native", "pickle", "pickle_frames", "npy", "lerobot"),
        only_if="enabled",
    )
    only_success: bool = key(False, "keep only episodes with a success", only_if="enabled")
    target_success: int | None = key(
        None, "stop keeping successful episodes at this number; null = never", low=0, only_if="enabled"
    )
    target_failure: int | None = key(
        None, "stop keeping failed episodes at this number; null = never", low=0, only_if="enabled"
    )
    cameras: tuple[str, ...] | None = key(
        None,
        "the cameras to record; null = all of the env's, [] = none",
        choices=("front", "side", "wrist"),
        only_if="enabled",
    )
    positive_dir: str | None = key(
        None, "folder of trajectories with a success; null = save_dir/positive", only_if="export_format=npy"
    )
    negative_dir: str | None = key(
        None, "folder of trajectories without; null = save_dir/negative", only_if="export_format=npy"
    )
    queue_size: int | None = key(
        None, "finished episodes that may wait for the disk; null = one per environment", low=1, only_if="enabled"
    )


@dataclass(frozen=True, kw_only=True)
class PandaEnvConfig:
    """The embedded simulation of a Franka Panda."""

    env_type: str = key("panda", "which world", tag=True)
    task: str = key("PickCube", "the task", choices=("Reach", "PushCube", "PickCube", "PegInsertion"))
    num_envs: int = key(16, "environments stepped side by side", low=1)
    max_episode_steps: int = key(50, "steps after which an episode is cut off", low=1)
    obs_mode: str = key("state", "what the policy observes", choices=("state", "rgb", "state+rgb"))
    control_mode: str = key("ee_delta", "what an action moves", choices=("ee_delta", "joint_delta"))
    reward_mode: str = key("dense", "the env's own reward", choices=("dense", "sparse"))
    terminate_on_success: bool = key(False, "end an episode at its first success")
    cameras: tuple[str, ...] = key(
        ("front", "side"),
        "the cameras; the first gives main_images, the others extra_view_images",
        choices=("front", "side", "wrist"),
        low=1,
    )
    image_size: int = key(64, "width and height of images in pixels", choices=(64, 128, 224))
    num_threads: int = key(0, "threads that step; 0 = one per core", low=0)
    randomise: RandomiseConfig = key(RandomiseConfig, "domain randomisation")
    data_collection: DataCollectionConfig = key(DataCollectionConfig, "recording of episodes")


# The worlds there are, in one line: PandaEnvConfig | ManiSkillEnvConfig | … Each class names itself by its
# tag, env_type; the first is taken where env_type is not given.
EnvConfig = PandaEnvConfig


@dataclass(frozen=True, kw_only=True)
class EnvSection:
    """The worlds a policy trains and is judged in."""

    group_name: str = key("EnvGroup", "name of the env worker group")
    train: EnvConfig | None = key(None, "the env to train in; null = none")
    eval: EnvConfig | None = key(None, "the env to evaluate in; null = none")


@dataclass(frozen=True, kw_only=True)
class BCConfig:
    """Behaviour cloning of the scripted expert before reinforcement learning starts."""

    episodes: int = key(0, "demonstrations to clone; 0 = no warm start", low=0)
    noise: float = key(0.2, "noise of the demonstrating expert", low=0, only_if="episodes")
    epochs: int = key(20, "passes over the demonstrations", low=1, only_if="episodes")
    batch_size: int = key(256, "samples per step", low=1, only_if="episodes")
    lr: float = key(1e-3, "learning rate", low=0, only_if="episodes")


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Proximal policy optimisation."""

    name: str = key("ppo", "which algorithm", tag=True)
    rollout_steps: int = key(50, "steps of every environment per iteration", low=1)
    update_epochs: int = key(8, "passes over each rollout", low=1)
    gamma: float = key(0.97, "discount", low=0, high=1)
    gae_lambda: float = key(0.95, "bias against variance of the advantages", low=0, high=1)
    clip_ratio: float = key(0.2, "how far the policy may move in one iteration", low=0)
    value_clip: float | None = key(None, "the same for the value; null = no clipping", low=0)
    value_coef: float = key(0.5, "weight of the value loss", low=0)
    entropy_coef: float = key(0.0, "weight of the entropy bonus", low=0)
    target_kl: float | None = key(None, "stop an iteration beyond 1.5 times this; null = never", low=0)
    normalise_advantages: bool = key(True, "per minibatch")
    normalise_observations: bool = key(True, "running mean and variance of states, saved with the policy")
    bootstrap_type: str = key(
        "standard", "future counted at an episode's end: when cut off, or always", choices=("standard", "always")
    )
    bc_warmup: BCConfig = key(BCConfig, "warm start by behaviour cloning")


AlgorithmConfig = PPOConfig


@dataclass(frozen=True, kw_only=True)
class PolicyModelConfig:
    """The policy network."""

    model_type: str = key("mlp", "mlp on state, or cnn on images (and proprioception)", choices=("mlp", "cnn"))
    hidden_dims: tuple[int, ...] = key((128, 128), "widths of the hidden layers", low=1)
    initial_log_std: float = key(-0.5, "log of the action noise at the start", low=-5, high=2)


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimiser (Adam)."""

    lr: float = key(3e-4, "learning rate", low=0)
    schedule: str = key("constant", "over the run", choices=("constant", "linear"))
    clip_grad: float = key(0.5, "largest norm of the gradient", low=0)


@dataclass(frozen=True, kw_only=True)
class ActorConfig:
    """The worker that learns the policy."""

    model: PolicyModelConfig = key(PolicyModelConfig, "the network")
    optim: OptimConfig = key(OptimConfig, "the optimiser")
    global_batch_size: int = key(800, "samples per optimiser step; divides num_envs x rollout_steps", low=1)
    num_threads: int = key(0, "threads of an update; 0 = one per core", low=0)


@dataclass(frozen=True, kw_only=True)
class Config:
    """The whole configuration."""

    runner: RunnerConfig = key(REQUIRED, "what to run")
    env: EnvSection = key(EnvSection, "where to run it")
    algorithm: AlgorithmConfig = key(AlgorithmConfig, "how the policy learns")
    actor: ActorConfig = key(ActorConfig, "who learns it")
