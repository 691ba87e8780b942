"""Modules of one's own that a run imports first: they register what is then chosen by name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from referee.errors import ConfigError

KEY = "runner.imports"


def import_modules(names: Sequence[str], *, key: str = KEY) -> None:
    """Import modules, which may lie in the current folder; each process of a run does it for itself.

    key: how they were given, for what is said about one that cannot be imported.
    """
    here = str(Path.cwd())
    if names and here not in sys.path:
        sys.path.append(here)  # last: a file here never hides an installed package
    for name in names:
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
