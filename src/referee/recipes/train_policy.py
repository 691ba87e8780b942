"""Recipe: train a policy with PPO or SAC, on the environment's reward or on a learned one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from referee.config import Loaded
from referee.config.endings import ending
from referee.learn.callbacks import Callback
from referee.learn.checks import check
from referee.learn.trainer import Trainer
from referee.recipes.model_keys import as_scored
from referee.refine.labellers import Terminal
from referee.runs.ending import Summary
from referee.runs.folder import locks_folder, name_run, open_run
from referee.runs.interrupt import Interrupt
from referee.runs.logbook import Logbook, check_backends, say_dropped


@locks_folder
def train_policy(loaded: Loaded) -> None:
    """Collect, learn, evaluate, save, until the steps, the minutes or the wanted success are reached."""
    check(loaded.config)
    check_backends(loaded)
    torch.set_num_threads(1)
    loaded = as_scored(loaded)
    console, runner = Console(), loaded.config.runner
    folder = name_run(loaded)
    run = Trainer(loaded.config, folder)
    resumed = run.resume(Path(runner.resume_dir)) if runner.resume_dir is not None else None
    open_run(loaded, folder)
    console.print(ending(loaded.config), soft_wrap=True)
    if run.reward.note:
        console.print(run.reward.note, soft_wrap=True)
    logbook = Logbook(folder, loaded, resumed_at=resumed)
    try:
        if resumed is not None:
            console.print(f"resuming at step {resumed:,}")
        say_dropped(console, logbook, resumed)
        if resumed is None:
            run.warm_start(console)
            if run.evaluation.metrics:
                logbook.write({**run.evaluation.metrics, "time/minutes": run.seconds / 60}, run.steps)
        with Interrupt(console) as interrupt, _progress(console, runner.max_steps) as bar:
            bar.update(TaskID(0), completed=run.steps)
            _make_room(run, bar)
            run.run([run.evaluation, _Log(logbook, bar), run.checkpoints], stop=lambda: interrupt.wanted)
        where = run.save()
        if interrupt.wanted:
            console.print(f"stopped at step {run.steps:,}; go on with runner.resume_dir={where}", soft_wrap=True)
            raise KeyboardInterrupt
        if run.alarmed:
            console.print(
                f"the alarm ended it at step {run.steps:,} (reward.alarm.stop=true): look at what the model pays for, "
                f"then go on with runner.resume_dir={where} reward.alarm.stop=false", soft_wrap=True,
            )  # fmt: skip
        Summary(console).on_end(run)
    finally:
        logbook.close()
        run.close()


class _Log(Callback):
    """Writes the metrics of each iteration, and moves the bar."""

    def __init__(self, logbook: Logbook, bar: Progress) -> None:
        self._logbook, self._bar = logbook, bar

    def on_iteration(self, trainer: Trainer, metrics: dict[str, float]) -> dict[str, float]:
        """See Callback."""
        self._logbook.write(metrics, trainer.steps)
        self._bar.update(TaskID(0), completed=trainer.steps, description=trainer.status_line())
        return {}


def _make_room(run: Trainer, bar: Progress) -> None:
    """Let no bar be drawn where a person is asked in the terminal."""
    refiner = None if run.refinement is None else run.refinement.refiner
    if refiner is not None and isinstance(refiner.labeller, Terminal):
        refiner.labeller.room = partial(_paused, bar)


@contextmanager
def _paused(bar: Progress) -> Iterator[None]:
    bar.stop()
    try:
        yield
    finally:
        bar.start()


def _progress(console: Console, total: int) -> Progress:
    progress = Progress(
        TextColumn("{task.completed:>9,.0f} steps"),
        BarColumn(bar_width=12),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=2,
    )
    progress.add_task("", total=total)
    return progress
