"""Where a run's numbers go: always metrics.jsonl, and TensorBoard or W&B where asked for."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from rich.console import Console

from referee import checksums
from referee.config import Loaded
from referee.errors import MissingDependency, RefereeError
from referee.files import replacing

METRICS = "metrics.jsonl"
BACKENDS = "runner.logger.logger_backends"
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
    def __init__(self, folder: Path, forget_from: int | None) -> None:
        """forget_from: the first step of an earlier writer's that no longer counts; None if all of them do."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=forget_from)

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
    """Refuse a back end that somebody asked for and that is not installed, before a run begins."""
    for name in loaded.config.runner.logger.logger_backends:
        if importlib.util.find_spec(name) is None and not _by_default(loaded):
            raise MissingDependency(f"{name} is not installed: pip install {name}, or drop it from {BACKENDS}")


def _by_default(loaded: Loaded) -> bool:
    return loaded.sources.get(BACKENDS, "default") == "default"


def _installed(loaded: Loaded) -> list[str]:
    """The back ends to write to; one that is there by default alone is left out where it is not installed."""
    names = loaded.config.runner.logger.logger_backends
    return [name for name in names if importlib.util.find_spec(name) is not None or not _by_default(loaded)]


class Logbook:
    """Takes named numbers at steps. Those in metrics.jsonl never go backwards."""

    def __init__(self, folder: Path, loaded: Loaded, *, resumed_at: int | None = None) -> None:
        """Go on after the step at which a run is resumed: what its folder holds beyond is dropped.

        resumed_at: None for a new run; whatever an earlier one left in the folder is dropped then.
        """
        self._path = folder / METRICS
        last = -1 if resumed_at is None else resumed_at
        self.dropped = _keep_until(self._path, last)
        """How many records were."""
        self._backends: list[_Backend] = []
        forget_from = last + 1 if self.dropped else None
        for name in _installed(loaded):
            place = folder / "tensorboard"
            self._backends.append(_TensorBoard(place, forget_from) if name == "tensorboard" else _WandB(folder, loaded))
        self._file = MetricsFile(self._path)
        self._last = last

    def write(self, values: dict[str, float], step: int) -> None:
        """One line of numbers at `step`; an earlier one than before means that a worker began again from there."""
        if step < self._last:
            self._file.close()
            _keep_until(self._path, step - 1)
            self._file = MetricsFile(self._path)
        self._last = step
        self._file.write(values, step)
        for backend in self._backends:
            backend.write(values, step)

    def close(self) -> None:
        """Flush and close everything."""
        self._file.close()
        for backend in self._backends:
            backend.close()


def say_dropped(console: Console, logbook: Logbook, resumed_at: int | None) -> None:
    """One line, where records were dropped."""
    if logbook.dropped:
        which = "of an earlier run" if resumed_at is None else f"after step {resumed_at:,}"
        console.print(f"{METRICS}: dropped {logbook.dropped:,} records {which}", highlight=False)


def _keep_until(path: Path, step: int) -> int:
    """Drop the records of later steps, and a line that a kill has cut off; returns how many records were dropped."""
    lines = [line for line in path.read_bytes().split(b"\n") if line] if path.exists() else []
    whole = [(line, record["step"]) for line in lines if (record := _record(path, line)) is not None]
    kept = [line for line, at in whole if at <= step]
    if len(kept) < len(lines):
        with replacing(path) as temporary:
            temporary.write_bytes(b"".join(line + b"\n" for line in kept))
    return len(whole) - len(kept)


def _record(path: Path, line: bytes) -> dict[str, float] | None:
    """The numbers of a line; None if it was cut off when a run was killed."""
    try:
        row: dict[str, float] = checksums.unsealed(line)[0]
    except (checksums.ChecksumError, ValueError) as error:
        if isinstance(error, checksums.ChecksumError) or _WHOLE.search(line):
            shown = line[:40].decode(errors="replace")
            raise RefereeError(f"{path}: the line {shown}… has changed since it was written: remove it") from error
        return None
    return row if type(row.get("step")) in (int, float) else None


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """The lines that a run wrote, one per step, without what a resumed run of an older version has left behind."""
    path, rows = Path(folder) / METRICS, list[dict[str, float]]()
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        if not line or (row := _record(path, line)) is None:
            continue
        while rows and rows[-1]["step"] >= row["step"]:
            rows.pop()
        rows.append(row)
    return rows
