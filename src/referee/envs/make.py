"""From a configuration to an environment: one maker per `env_type`, and makers of other packages.

A package registers its own vector environment as an entry point, or a configuration names it as `module:function`:

    [project.entry-points."referee.envs"]
    my_arm = "my_package.envs:make"           # make(config: CustomEnvConfig, **kwargs) -> RefereeVectorEnv

    referee run … env.train.env_type=custom env.train.maker=my_arm env.train.kwargs.table=round
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from referee.config.gym import CustomEnvConfig, arguments
from referee.config.imports import load_attribute
from referee.config.schema import EnvConfig
from referee.envs.contract import RefereeVectorEnv
from referee.errors import ConfigError
from referee.robots.spacemouse import InputDevice

GROUP = "referee.envs"
"""The entry points that other packages register makers under."""
MAKERS: Mapping[str, str] = {
    "panda": "referee.envs.panda.env:PandaVectorEnv",
    "maniskill": "referee.envs.maniskill.env:ManiSkillVectorEnv",
    "gymnasium": "referee.envs.gym.env:GymVectorEnv",
    "franka": "referee.envs.franka.intervention:make_arm",
}
"""env_type → what makes the environment, imported when it is needed."""


def make_vec(config: EnvConfig, device: InputDevice | None = None) -> RefereeVectorEnv:
    """The environment that `config` describes, chosen by its `env_type`. device: that an arm is led with, if given."""
    if isinstance(config, CustomEnvConfig):
        return _custom(config)
    module, _, name = MAKERS[config.env_type].partition(":")
    maker: Callable[..., RefereeVectorEnv] = getattr(import_module(module), name)
    return maker(config, device) if config.env_type == "franka" else maker(config)


def _custom(config: CustomEnvConfig) -> RefereeVectorEnv:
    env = _maker(config.maker)(config, **arguments(config.kwargs))
    if not isinstance(env, RefereeVectorEnv):
        raise ConfigError(
            f"env.*.maker={config.maker} made {type(env).__name__}, which is no referee.envs.RefereeVectorEnv: "
            "for a Gymnasium environment set env_type=gymnasium and its id"
        )
    if env.num_envs != config.num_envs:
        raise ConfigError(
            f"env.*.maker={config.maker} made {env.num_envs} environments, but env.*.num_envs is {config.num_envs}"
        )
    return env


def _maker(name: str | None) -> Callable[..., Any]:
    if name is None:
        raise ConfigError("env.*.maker is not given: name module:function, or a registered entry point")
    if ":" in name:
        maker: Callable[..., Any] = load_attribute(name, "env.*.maker")
        return maker
    registered = {each.name: each for each in entry_points(group=GROUP)}
    if name not in registered:
        there = ", ".join(sorted(registered)) or "none"
        raise ConfigError(f"env.*.maker={name} is no module:function, nor registered ({GROUP}: {there})")
    loaded: Callable[..., Any] = registered[name].load()
    return loaded
