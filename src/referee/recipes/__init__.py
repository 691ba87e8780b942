"""Recipes: each runner takes a configuration and does one thing from start to end."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from referee.config import Loaded
from referee.config.imports import import_modules

RECIPES = ("evaluate", "demo", "train_policy", "train_reward", "train_vlm", "collect_labels", "collect_data", "teleop")
"""Names for `runner.recipe`: each is a function in the module of its name, imported when it is run."""
ELSEWHERE = {"demo": "referee.demo.recipe"}
"""Modules of recipes that have a package of their own."""


def run(loaded: Loaded) -> object:
    """Start the recipe that the configuration names; returns its result, or None where it reports while it runs."""
    import_modules(loaded.config.runner.imports)
    from referee.learn.environments import with_robot

    name = loaded.config.runner.recipe
    recipe = getattr(import_module(ELSEWHERE.get(name, f"referee.recipes.{name}")), name)
    return recipe(replace(loaded, config=with_robot(loaded.config)))
