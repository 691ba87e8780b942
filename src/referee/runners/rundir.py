"""The directory that a run leaves behind."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from referee.config import Loaded, to_yaml
from referee.errors import RefereeError


def open_run(loaded: Loaded) -> Path:
    """Make the run's directory (`logs/<timestamp>-<preset>` unless the config names one) with the config in it."""
    named = loaded.config.runner.logger.log_path
    preset = Path(loaded.preset).stem
    folder = Path(named) if named else Path("logs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{preset}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "config.yaml", to_yaml(loaded))
    except OSError as error:
        raise RefereeError(
            f"cannot write to {folder} ({error.strerror}): set runner.logger.log_path to a folder that you can write"
        ) from error
    return folder


def write_text(path: Path, text: str) -> None:
    """Write beside the goal and rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    os.replace(temporary, path)


def write_json(path: Path, value: Any) -> None:
    """The same for a JSON value."""
    write_text(path, json.dumps(value, indent=2) + "\n")
