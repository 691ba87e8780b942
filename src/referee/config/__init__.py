"""Typed configuration: presets over groups, checked against a schema, each value with its source."""

from referee.config.arm import FrankaEnvConfig, RobotConfig
from referee.config.explain import explain, first_time
from referee.config.files import presets
from referee.config.load import load
from referee.config.loaded import Loaded
from referee.config.maniskill import ManiSkillEnvConfig
from referee.config.runner import LoggerConfig, RunnerConfig
from referee.config.schema import (
    Config,
    EnvConfig,
    EnvSection,
    PandaEnvConfig,
    RandomiseConfig,
)
from referee.config.show import list_presets, show, to_yaml

__all__ = [
    "Config",
    "EnvConfig",
    "EnvSection",
    "FrankaEnvConfig",
    "Loaded",
    "LoggerConfig",
    "ManiSkillEnvConfig",
    "PandaEnvConfig",
    "RandomiseConfig",
    "RobotConfig",
    "RunnerConfig",
    "explain",
    "first_time",
    "list_presets",
    "load",
    "presets",
    "show",
    "to_yaml",
]
