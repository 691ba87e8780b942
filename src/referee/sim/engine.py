"""MuJoCo, imported when it is first used: the embedded simulation is an extra, and nothing else needs it."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from referee.errors import MissingDependency

FIX = "pip install 'referee-rl[sim]'"


@cache
def load_mujoco() -> Any:
    """The module `mujoco`, of version 4 or newer; else one line with the fix."""
    try:
        module = import_module("mujoco")
    except ImportError as error:
        raise MissingDependency(f"the embedded simulation needs mujoco, which is not installed: {FIX}") from error
    if int(module.__version__.split(".")[0]) < 4:
        raise MissingDependency(
            f"the embedded simulation needs mujoco 4 or newer, here is {module.__version__}: {FIX}, in an environment "
            "of its own where another package needs the old one"
        )
    return module


class LazyMujoco:
    """Stands for `mujoco` in modules that must be importable without it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(load_mujoco(), name)
