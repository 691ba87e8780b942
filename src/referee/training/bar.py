"""Reports of a training as people see them: a progress bar, lines for validations, and numbers for a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

Log = Callable[[dict[str, float], int], None]


class Report(Protocol):
    """Where a training is."""

    @property
    def step(self) -> int: ...
    @property
    def total_steps(self) -> int: ...
    @property
    def epoch(self) -> float: ...
    @property
    def train_loss(self) -> float: ...
    @property
    def seconds(self) -> float: ...
    @property
    def val(self) -> Any: ...
    @property
    def best(self) -> bool: ...
    @property
    def log_step(self) -> int: ...


R = TypeVar("R", bound=Report)


class Bar(Generic[R]):
    """Takes reports while it is open."""

    def __init__(
        self,
        console: Console,
        log: Log | None,
        *,
        describe: Callable[[R], str],
        numbers: Callable[[R], dict[str, float]],
    ) -> None:
        """describe: a validation in words; numbers: a report under the names of logs."""
        self._log, self._describe, self._numbers = log, describe, numbers
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
        self._progress = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
        self._task: TaskID | None = None

    def __enter__(self) -> Bar[R]:
        self._progress.__enter__()
        return self

    def __exit__(self, *reason: Any) -> None:
        self._progress.__exit__(*reason)

    def show(self, report: R) -> None:
        """Take one report."""
        if self._task is None:
            self._task = self._progress.add_task("training", total=report.total_steps)
        words = f"loss {report.train_loss:.4f}"
        self._progress.update(self._task, total=report.total_steps, completed=report.step, description=words)
        if report.val is not None:
            mark = " (best)" if report.best else ""
            words = self._describe(report)
            line = f"epoch {report.epoch:.4g}, step {report.step}, {report.seconds:.1f} s: {words}{mark}"
            self._progress.console.print(line, highlight=False, markup=False, soft_wrap=True)
        if self._log is not None:
            self._log(self._numbers(report), report.log_step)
