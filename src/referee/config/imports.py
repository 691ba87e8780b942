"""Modules of one's own that a run imports first: they register what is then chosen by name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from referee.errors import ConfigError

KEY = "runner.imports"


def load_attribute(name: str, key: str) -> Any:
    """What `module:attribute` names; the module may lie in the current folder. key: where it was given."""
    module, _, attribute = name.partition(":")
    import_modules([module], key=key)
    value = getattr(sys.modules[module], attribute, None)
    if value is None:
        raise ConfigError(f"{key}={name}: module {module} has no {attribute or 'name after the colon'}")
    return value


def _look_here_too() -> None:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last: a file here never hides an installed package


def import_modules(names: Sequence[str], *, key: str = KEY) -> None:
    """Import modules, which may lie in the current folder; each process of a run does it for itself.

    key: how they were given, for what is said about one that cannot be imported.
    """
    here = str(Path.cwd())
    for name in names:
        _look_here_too()
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
                raise ConfigError(f"{key}: {name} needs {error.name}, which is not installed") from error
            raise ConfigError(
                f"{key}: there is no module {name} in {here} or among the installed packages: give its name without .py"
            ) from error
        except Exception as error:
            what = " ".join(str(error).split())
            raise ConfigError(f"{key}: {name} cannot be imported ({type(error).__name__}: {what})") from error
