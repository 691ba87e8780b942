"""Recipes: each runner takes a configuration and does one thing from start to end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from referee.config import Loaded
from referee.config.imports import import_modules
from referee.runners.collect_data import collect_data
from referee.runners.collect_labels import collect_labels
from referee.runners.demo import demo
from referee.runners.environments import with_robot
from referee.runners.evaluate import evaluate
from referee.runners.teleop import teleop
from referee.runners.train_policy import train_policy
from referee.runners.train_reward import train_reward
from referee.runners.train_vlm import train_vlm

RUNNERS: dict[str, Callable[[Loaded], None]] = {
    "evaluate": evaluate,
    "demo": demo,
    "train_policy": train_policy,
    "train_reward": train_reward,
    "train_vlm": train_vlm,
    "collect_labels": collect_labels,
    "collect_data": collect_data,
    "teleop": teleop,
}
"""Recipe name (`runner.recipe`) → the function that runs it."""


def run(loaded: Loaded) -> None:
    """Start whatever recipe the configuration names."""
    import_modules(loaded.config.runner.imports)
    RUNNERS[loaded.config.runner.recipe](replace(loaded, config=with_robot(loaded.config)))
