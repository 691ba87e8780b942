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
}


@dataclass(frozen=True, kw_only=True)
class LoggerConfig:
    """Where a run writes."""

    log_path: str | None = key(None, "directory of the run; null = logs/<timestamp>-<preset>")
    experiment_name: str | None = key(None, "name shown in logs; null = the preset's name")


@dataclass(frozen=True, kw_only=True)
class RunnerConfig:
    """What `referee run` starts, and for how long."""

    recipe: str = key(REQUIRED, "the runner to start", choices=tuple(RECIPES))
    seed: int = key(0, "seed of everything that is drawn", low=0)
    policy: str = key("expert", "who acts: the scripted expert or uniform noise", choices=("expert", "random"))
    expert_noise: float = key(0.0, "standard deviation added to the expert's actions", low=0, only_if="policy=expert")
    num_episodes: int = key(64, "episodes to run", low=1)
    film: bool = key(True, "write a film of some episodes")
    film_episodes: int = key(4, "episodes in the film", low=1, only_if="film")
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
class Config:
    """The whole configuration."""

    runner: RunnerConfig = key(REQUIRED, "what to run")
    env: EnvSection = key(EnvSection, "where to run it")
