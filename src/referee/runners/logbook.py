"""Where a run's numbers go: always metrics.jsonl, and TensorBoard or W&B where asked for."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from referee import checksums
from referee.config import Loaded
from referee.errors import MissingDependency, RefereeError

METRICS = "metrics.jsonl"
_WHOLE = re.compile(rb'(crc32:.{8}.{2,3}|"checksum":.{17,18})\Z', re.DOTALL)
"""How a line ends that was not cut off."""


class _Backend(Protocol):
    def write(self, values: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class MetricsFile:
    """Appends a line of JSON per step; each carries its checksum."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("a+b")
        if self._file.tell():
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":  # a killed run left half a line
                self._file.write(b"\n")

    def write(self, values: dict[str, float], step: int) -> None:
        self._file.write(checksums.sealed_line({"step": step, **values}).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


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
        self._backends: list[_Backend] = [MetricsFile(folder / METRICS)]
        for name in loaded.config.runner.logger.logger_backends:
            self._backends.append(
                _TensorBoard(folder / "tensorboard") if name == "tensorboard" else _WandB(folder, loaded)
            )

    def write(self, values: dict[str, float], step: int) -> None:
        """One line of numbers at `step`."""
        for backend in self._backends:
            backend.write(values, step)

    def close(self) -> None:
        """Flush and close everything."""
        for backend in self._backends:
            backend.close()


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """The lines that a run wrote, in the order of their steps, without what a resumed run has forgotten."""
    path, rows = Path(folder) / METRICS, list[dict[str, float]]()
    for number, line in enumerate(path.read_bytes().split(b"\n") if path.exists() else (), 1):
        try:
            row: dict[str, float] = checksums.unsealed(line)[0]
        except (checksums.ChecksumError, ValueError) as error:
            if isinstance(error, checksums.ChecksumError) or _WHOLE.search(line):
                raise RefereeError(
                    f"{path}: line {number} has changed since it was written (checksum): remove the line"
                ) from error
            continue  # cut off, when the machine lost its power
        while rows and rows[-1]["step"] >= row["step"]:
            rows.pop()
        rows.append(row)
    return rows
