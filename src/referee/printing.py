"""What the command prints of a result that a recipe returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from referee.audit.calibrate import Choice
from referee.audit.calibrated_training import TrainedReward
from referee.audit.trend import TrendAudit
from referee.audit.words import NAMES, headline, plain, span, verdict
from referee.collect.labelled_frames import LabelledFrames
from referee.datasets.windows import LABELS
from referee.metrics import Rate
from referee.printing_data import show, warn
from referee.recipes.audit import Audited
from referee.recipes.audit_vlm import AuditedTrend
from referee.recipes.collect_data import CollectedEpisodes
from referee.recipes.datasets import BuiltDataset
from referee.recipes.evaluate import Evaluated
from referee.recipes.refine import Refined
from referee.recipes.refine_log import RefinementLog, cells
from referee.recipes.score import Scores
from referee.recipes.text import TextScores
from referee.recipes.train_vlm import TrainedVlm
from referee.refine.loop import BOOK, HELD_OUT
from referee.runs.next_step import after_collecting, after_training, next_line

__all__ = ["calibration", "show", "trend_tables", "wrote"]
TONES = {"good": "green", "open": "yellow", "bad": "red"}


@show.register
def _(result: Evaluated, console: Console) -> None:
    console.print(f"{result.task}, {result.policy}: success at the end {result.outcomes.rate()}")
    console.print(f"  success at any time {result.outcomes.rate(once=True)}")
    if result.film is not None:
        _line(console, f"  film {result.film}")
    _line(console, f"  numbers {result.numbers}")
    if result.episodes is not None:
        _line(console, f"  episodes {result.recorded} in {result.episodes}")
        if result.trainable and result.episodes.exists():
            _line(console, after_collecting(result.episodes))


@show.register
def _(result: TrainedReward, console: Console) -> None:
    calibration(result.choice, console)
    _line(console, f"artifact {result.folder}")
    _line(console, after_training(result.folder, result.episodes))


def calibration(choice: Choice | None, console: Console) -> None:
    """What was chosen, and what it does on the episodes that it was chosen on."""
    if choice is None:
        _line(console, "no validation, so the threshold stays at 0.5, unchecked", style="yellow")
        return
    measured = choice.measured
    fails = measured["failing_episodes"]
    fired = Rate(measured["paid_failing_episodes"], fails) if fails else "–"
    last = "" if choice.terminal_threshold is None else f" ({choice.terminal_threshold:.4f} for a last state alone)"
    _line(
        console,
        f"threshold {choice.threshold:.4f}{last}, gate {choice.gate_k} of {choice.gate_n}, temperature "
        f"{choice.temperature:.2f}, chosen on {measured['validation_episodes']} validation episodes:\n"
        f"  successes detected {Rate(measured['detected_episodes'], measured['success_episodes'])}\n"
        f"  failing episodes paid {fired}",
    )
    for note in choice.notes:
        _line(console, f"  note: {note}", style="yellow")


@show.register
def _(result: Audited, console: Console) -> None:
    metrics = result.card.metrics
    tone, word, promise = verdict(metrics)
    console.print(f"[bold {TONES[tone]}]{word}[/]  {headline(metrics)}", highlight=False)
    console.print(promise, highlight=False)
    table = _table(("", "left"), ("value", "right"), ("95 %", "left"))
    for key, name in NAMES.items():
        table.add_row(name, plain(metrics[key].value), span(metrics[key]))
    for camera, values in metrics.cameras.items():
        table.add_row(f"AUROC without {escape(camera)}", plain(values["auroc"].value), span(values["auroc"]))
    console.print(table)
    for note in metrics.notes:
        _line(console, f"note: {note}", style="yellow")
    if result.replaced:
        _line(console, f"{result.replaced} in {result.page.parent} was replaced; --out keeps both")
    _line(console, f"report card {result.page}")


@show.register
def _(result: Scores, console: Console) -> None:
    for each in result.pictures:
        word = "[green]success[/]   " if each.success else "no success"
        console.print(f"{each.probability:.4f}  {word}  {escape(str(each.path))}", highlight=False, soft_wrap=True)
    if result.episodes:
        table = _table(*((name, "left") for name in ("episode", "highest", "gate fires", "recorded")))
        for each_episode in result.episodes:
            when = "never" if each_episode.fires_at is None else f"at state {each_episode.fires_at}"
            table.add_row(escape(each_episode.name), f"{each_episode.highest:.4f}", when, each_episode.recorded)
        console.print(table)
    if result.gif is not None:
        wrote(result.gif, console)


@show.register
def _(result: AuditedTrend, console: Console) -> None:
    trend_tables(result.metrics, console)
    _line(console, f"report card {result.page}")


def trend_tables(found: TrendAudit, console: Console) -> None:
    """Rates with intervals, plain numbers, and the confusion matrix."""
    scores = found.scores
    table = _table(("", "left"), ("value", "right"), ("95 %", "left"))
    rates = {
        "accuracy, three labels": scores.confusion.accuracy,
        **{f"recall of {name}": rate for name, rate in scores.confusion.recalls.items()},
        "positive rather than negative": scores.up,
        "negative rather than positive": scores.down,
    }
    for name, rate in rates.items():
        low, high = rate.interval
        table.add_row(name, f"{rate.share:.3f}", f"{low:.3f} to {high:.3f}, of {rate.trials}")
    numbers = {
        "up or down, both alike": scores.trend,
        "calibration error (ECE)": found.ece,
        "order in time (VOC)": found.voc,
        "following the true progress": found.following,
    }
    for name, value in numbers.items():
        table.add_row(name, f"{value:.3f}", "")
    console.print(table)
    matrix = Table(box=None, pad_edge=False, header_style="dim", title_justify="left")
    for name in ("true \\ said", *LABELS):
        matrix.add_column(name, justify="left" if "true" in name else "right")
    for name, row in zip(LABELS, scores.confusion.counts, strict=True):
        matrix.add_row(name, *map(str, row[: len(LABELS)].tolist()))
    console.print()
    console.print(matrix)
    if found.said:
        total = sum(found.said.values())
        console.print(f"written answers that cannot be read: {found.said['invalid']} of {total}", highlight=False)
    for note in found.notes:
        _line(console, f"note: {note}", style="yellow")


@show.register
def _(result: TextScores, console: Console) -> None:
    console.print(
        f"{result.source}: right by rule {result.rule} {result.rate}; mean reward {result.mean_reward:.3f}",
        soft_wrap=True,
    )
    if result.out is not None:
        wrote(result.out, console)


@show.register
def _(result: BuiltDataset, console: Console) -> None:
    warn(result.left_out, console)
    for line in str(result.summary).splitlines():
        _line(console, line, style="bold yellow" if line.startswith("warning:") else None)


@show.register
def _(result: CollectedEpisodes, console: Console) -> None:
    _line(console, str(result))
    _line(console, after_collecting(result.store))


@show.register
def _(result: LabelledFrames, console: Console) -> None:
    if result.summary is None:
        _line(console, f"No dataset was made: {result.missing}.")
        return
    if moved := result.reaction_seconds:
        console.print(
            f"labels moved {moved:g} s earlier (runner.labelling.reaction_seconds): the counts are of these",
            highlight=False,
        )
    for line in str(result.summary).splitlines():
        _line(console, line)
    _line(console, after_collecting(result.folder))


@show.register
def _(result: TrainedVlm, console: Console) -> None:
    _line(console, f"use it as reward.model.{result.key}={result.folder}")
    if result.windows is not None:
        _line(console, next_line("audit", result.folder, result.windows))


@show.register
def _(result: Refined, console: Console) -> None:
    if result.artifact is not None:
        _line(console, f"better model: {result.artifact}")
    elif result.retrained:
        console.print("no retrained model was better on the frames that were held out: keep the one you have")
    else:
        _line(
            console,
            f"no model was trained: {result.answered} of {result.asked} frames are answered, and {HELD_OUT} drawn "
            f"evenly and {HELD_OUT} others are needed; answer more in {result.out / BOOK}, or raise --budget, and give "
            "the same command",
        )


@show.register
def _(result: RefinementLog, console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("step", "asked", "fooled", "missed", "loss", "right", "judge", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in result.rounds:
        table.add_row(*cells(each))
    console.print(table)
    console.print("loss and right answers: on recent frames that were held out, before → after retraining", style="dim")
    unanswered = result.asked - result.successes - result.failures
    mined = f"; {result.mined} more of the policy's first steps taken as failures" if result.mined else ""
    console.print(
        f"\n{result.asked} frames asked about: {result.successes} successes, {result.failures} failures, "
        f"{unanswered} unanswered{mined}"
    )
    gained = result.gained
    for line in [f"success gained         {gained}"] if isinstance(gained, str) else gained.lines():
        _line(console, line)
    console.print(f"questions and answers  {result.book} (an episode store and its label log)", soft_wrap=True)
    if result.versions is not None:
        console.print(f"models                 {result.versions}", soft_wrap=True)
    if result.sheets is not None:
        console.print(f"pictures               {result.sheets}", soft_wrap=True)


def wrote(path: Path, console: Console) -> None:
    """That a file is there."""
    _line(console, f"wrote {path}")


def _line(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def _table(*columns: tuple[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, side in columns:
        table.add_column(name, justify=side)
    return table
