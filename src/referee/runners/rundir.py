"""The directory of a run."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

from referee.config import Loaded, to_yaml
from referee.errors import RefereeError
from referee.files import write_text


def name_run(loaded: Loaded) -> Path:
    """`logs/<timestamp>-<experiment or preset>` unless the config names one; nothing is made yet.

    A second run within the same second is called `…-2`.
    """
    logger = loaded.config.runner.logger
    if logger.log_path:
        return Path(logger.log_path)
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{Path(logger.experiment_name or loaded.preset).stem}"
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(place for each in names if not (place := Path(logger.output_dir) / each).exists())


def open_run(loaded: Loaded, folder: Path | None = None) -> Path:
    """Make the run's directory, with the config in it."""
    folder = folder or name_run(loaded)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "config.yaml", to_yaml(loaded))
    except OSError as error:
        raise RefereeError(
            f"cannot write to {folder} ({error.strerror}): set runner.logger.log_path to a folder that you can write"
        ) from error
    return folder
