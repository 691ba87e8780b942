"""Libraries that only some features need: the module, or the line that installs it."""

from __future__ import annotations

import importlib
from typing import Any

from referee.errors import MissingDependency


def require(module: str, *, extra: str, what: str) -> Any:
    """The module, or one line that says what needs it and how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise MissingDependency(f"{what} needs {name}: pip install 'referee-rl[{extra}]' ({error})") from error
