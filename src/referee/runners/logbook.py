"""Where a run's numbers go: always metrics.jsonl, and TensorBoard or W&B where asked for."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any, Protocol

from referee import files
from referee.config import Loaded
from referee.errors import MissingDependency

METRICS = "metrics.jsonl"


class _Backend(Protocol):
    def write(self, values: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def write(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _WandB:
    def __init__(self, folder: Path, loaded: Loaded) -> None:
        import wandb  # type: ignore[import-not-found,unused-ignore]

        logger = loaded.config.runner.logger
        name = logger.experiment_name or loaded.preset
        self._run: Any = wandb.init(project=logger.project_name, name=name, dir=str(folder), config=loaded.tree())

    def write(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


def check_backends(loaded: Loaded) -> None:
    """Refuse a back end that is not installed before a run begins."""
    for name in loaded.config.runner.logger.logger_backends:
        if importlib.util.find_spec(name) is None:
            raise MissingDependency(
                f"{name} is not installed: pip install {name}, or drop it from runner.logger.logger_backends"
            )


class Logbook:
    """Takes named numbers at environment steps."""

    def __init__(self, folder: Path, loaded: Loaded) -> None:
        self._backends: list[_Backend] = []
        for name in loaded.config.runner.logger.logger_backends:
            self._backends.append(
                _TensorBoard(folder / "tensorboard") if name == "tensorboard" else _WandB(folder, loaded)
            )
        self._file = (folder / METRICS).open("a")

    def write(self, values: dict[str, float], step: int) -> None:
        """One line of numbers at `step`."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        for backend in self._backends:
            backend.write(values, step)

    def close(self) -> None:
        """Flush and close everything."""
        self._file.close()
        for backend in self._backends:
            backend.close()


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """The lines that a run wrote, in the order of their steps, without what a resumed run has forgotten."""
    path, found = Path(folder) / METRICS, list[dict[str, float]]()
    for text in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            line = files.parse_json(text)
        except ValueError:  # cut off, when the run was killed
            continue
        if not isinstance(line, dict) or type(line.get("step")) not in (int, float):
            continue
        while found and found[-1]["step"] >= line["step"]:
            found.pop()
        found.append(line)
    return found
