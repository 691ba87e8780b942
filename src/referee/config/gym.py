"""The keys of a Gymnasium environment, and of a vector environment that somebody else has written."""
# ruff: noqa: RUF009 -- key() makes a dataclasses.field; nothing mutable is shared

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from referee.config.collection import DataCollectionConfig
from referee.config.declare import REQUIRED, key


@dataclass(frozen=True, kw_only=True)
class ArgumentConfig:
    """One keyword argument."""

    value: str | int | float | bool = key(REQUIRED, "its value")


Arguments = Mapping[str, ArgumentConfig] | None


@dataclass(frozen=True, kw_only=True)
class GymEnvConfig:
    """Any environment of Gymnasium with a Box of actions, by its id."""

    env_type: str = key("gymnasium", "which world", tag=True)
    id: str | None = key(None, "id of the environment, e.g. FetchReach-v4; module:id imports the module first")
    kwargs: Arguments = key(None, "keyword arguments of gymnasium.make, e.g. kwargs.reward_type=dense", short="value")
    num_envs: int = key(16, "environments stepped side by side", low=1)
    num_processes: int = key(0, "processes that step and draw them; 0 = one per core, 1 = none but this one", low=0)
    max_episode_steps: int | None = key(None, "steps after which an episode is cut off; null = as registered", low=1)
    obs_mode: str = key("state", "what the policy observes", choices=("state", "rgb", "state+rgb"))
    reward_mode: str = key("env", "the environment's own reward, or 1 for each success", choices=("env", "sparse"))
    success_key: str | None = key(
        None,
        "where success is: a key of info, `terminated`, or module:function(info); null = success or is_success of info",
    )
    terminate_on_success: bool = key(False, "end an episode when it has succeeded")
    success_hold_steps: int = key(
        1, "successive successes that end an episode, where ground truth or a reward model's verdict ends it", low=1
    )
    cameras: tuple[str, ...] | None = key(
        None,
        "image entries of the observation by name, or `render`; null = all image entries, else render; [] = none",
    )
    images: str | None = key(
        None,
        "module:function(env) that draws pictures when they are asked for: {camera: uint8[H,W,3]}; null = as cameras",
    )
    image_size: int = key(64, "images are scaled to so many pixels, width and height", low=8, high=1024)
    proprio_size: int | None = key(
        None, "leading entries of the state that the robot measures itself, for policies on images; null = all", low=0
    )
    keep_final_images: bool = key(
        False,
        "draw the last state of every episode before anything asks for it: for environments whose episodes "
        "cannot be replayed from their seed",
    )
    description: str | None = key(None, "the task in words, for vision-language models; null = the id")
    encoder: str | None = key(
        None, "reward model whose frozen encoder turns images into states, once; null = images as they are"
    )
    data_collection: DataCollectionConfig = key(DataCollectionConfig, "recording of episodes")

    @property
    def task(self) -> str:
        """The name of the task, as in episodes and checkpoints."""
        return self.id or ""


def arguments(given: Arguments) -> dict[str, Any]:
    """Keyword arguments as a function takes them."""
    return {name: each.value for name, each in (given or {}).items()}


@dataclass(frozen=True, kw_only=True)
class CustomEnvConfig:
    """A vector environment of your own, under the contract of `referee.envs.RefereeVectorEnv`."""

    env_type: str = key("custom", "which world", tag=True)
    maker: str | None = key(
        None,
        "what makes it from this configuration: module:function, or a name registered as entry point referee.envs",
    )
    kwargs: Arguments = key(None, "keyword arguments of the maker", short="value")
    task: str = key("custom", "name of the task, as in episodes and checkpoints")
    num_envs: int = key(16, "environments stepped side by side", low=1)
    max_episode_steps: int | None = key(None, "steps after which an episode is cut off; null = the maker's own", low=1)
    obs_mode: str = key("state", "what the policy observes", choices=("state", "rgb", "state+rgb"))
    terminate_on_success: bool = key(False, "end an episode when it has succeeded")
    success_hold_steps: int = key(
        1, "successive successes that end an episode, where ground truth or a reward model's verdict ends it", low=1
    )
    cameras: tuple[str, ...] | None = key(None, "the cameras; null = the maker's own")
    image_size: int = key(64, "width and height of images in pixels", low=8, high=1024)
    encoder: str | None = key(
        None, "reward model whose frozen encoder turns images into states, once; null = images as they are"
    )
    data_collection: DataCollectionConfig = key(DataCollectionConfig, "recording of episodes")

    @property
    def reward_mode(self) -> str:
        """The environment's own reward: what else there may be is an argument of its maker."""
        return "env"
