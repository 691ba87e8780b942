"""Where a run's numbers go: always metrics.jsonl, and TensorBoard or W&B where asked for."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from referee.config import Loaded
from referee.errors import MissingDependency
from referee.files import write_text

METRICS = "metrics.jsonl"


class _Backend(Protocol):
    def write(self, values: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


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
    """Refuse a back end that is not installed before a run begins."""
    for name in loaded.config.runner.logger.logger_backends:
        if importlib.util.find_spec(name) is None:
            raise MissingDependency(
                f"{name} is not installed: pip install {name}, or drop it from runner.logger.logger_backends"
            )


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
        for name in loaded.config.runner.logger.logger_backends:
            place = folder / "tensorboard"
            self._backends.append(_TensorBoard(place, forget_from) if name == "tensorboard" else _WandB(folder, loaded))
        self._file = self._path.open("a")
        self._last = last

    def write(self, values: dict[str, float], step: int) -> None:
        """One line of numbers at `step`; an earlier one than before means that a worker began again from there."""
        if step < self._last:
            self._file.close()
            _keep_until(self._path, step - 1)
            self._file = self._path.open("a")
        self._last = step
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
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
    lines = path.read_text().splitlines() if path.exists() else []
    whole = [(line, record["step"]) for line in lines if (record := _record(line)) is not None]
    kept = [line for line, at in whole if at <= step]
    if len(kept) < len(lines):
        write_text(path, "".join(f"{line}\n" for line in kept))
    return len(whole) - len(kept)


def _record(line: str) -> dict[str, float] | None:
    """None if it was cut off when a run was killed."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "step" in record else None


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """The lines that a run wrote, one per step, without what a resumed run of an older version has left behind."""
    path, found = Path(folder) / METRICS, list[dict[str, float]]()
    for text in path.read_text().splitlines() if path.exists() else ():
        if (line := _record(text)) is None:
            continue
        while found and found[-1]["step"] >= line["step"]:
            found.pop()
        found.append(line)
    return found
