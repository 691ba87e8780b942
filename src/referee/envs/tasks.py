"""Names of tasks: the same one with or without the module that registers it, and the key that a task is chosen by."""

from __future__ import annotations

import re

from referee.config.gym import GymEnvConfig
from referee.config.schema import EnvConfig

_MODULE = re.compile(r"^[A-Za-z_][\w.]*:(?=\S)")


def plain_task(name: str) -> str:
    """A task without the module that Gymnasium imports first.

    >>> plain_task("gymnasium_robotics:FetchReach-v4")
    'FetchReach-v4'
    """
    return _MODULE.sub("", name)


def same_task(one: str, other: str) -> bool:
    """Whether two names are of one task."""
    return plain_task(one) == plain_task(other)


def task_key(config: EnvConfig | None, side: str = "train") -> str:
    """The key that chooses the task of such an environment."""
    return f"env.{side}.id" if isinstance(config, GymEnvConfig) else f"env.{side}.task"
