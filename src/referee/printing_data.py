"""What the command prints of recorded episodes: results of recipes that need no model, and so no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import singledispatch
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from referee.datasets.convert import Converted
from referee.episodes.store import Row
from referee.metrics import Rate
from referee.recipes.check_episodes import CheckedStore
from referee.recipes.episodes import Listing, Merged


@singledispatch
def show(result: Any, console: Console) -> None:
    """Print a result; recipes that report while they run return none."""
    if result is not None:
        raise TypeError(f"{type(result).__name__} has no text")


@show.register
def _(result: Listing, console: Console) -> None:
    rows, source = result.rows, result.source
    if not rows:
        console.print(f"{source}: no episodes", soft_wrap=True)
        warn(result.warnings, console)
        return
    steps, size = sum(row.steps for row in rows), size_text(sum(row.bytes for row in rows))
    console.print(f"[bold]{escape(str(source))}[/]: {len(rows)} episodes, {steps:,} steps, {size}", highlight=False,
                  soft_wrap=True)  # fmt: skip
    _success(rows, console)
    for what in ("task", "source"):
        counts = Counter(getattr(row, what) or "unknown" for row in rows)
        named = [f"{name} {n}" for name, n in counts.most_common(3)] + ["…"] * (len(counts) > 3)
        console.print(f"  {what:<20} {', '.join(named)}", highlight=False, soft_wrap=True, markup=False)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("id", "steps", "success", "at the end", "cameras", "size"):
        table.add_column(heading, justify="right" if heading in ("steps", "size") else "left")
    for row in rows[-result.newest :]:
        table.add_row(escape(row.id), str(row.steps), _yes(row.success_once), _yes(row.success_at_end),
                      escape(", ".join(row.cameras)), size_text(row.bytes))  # fmt: skip
    console.print(table)
    warn(result.warnings, console)


def _success(rows: tuple[Row, ...], console: Console) -> None:
    """How many episodes succeed, and how many nobody has labelled."""
    labelled = [row for row in rows if row.success_once is not None]
    if labelled:
        for text, flags in (
            ("success at any time", [row.success_once for row in labelled]),
            ("success at the end", [row.success_at_end for row in labelled]),
        ):
            console.print(f"  {text:<20} {Rate(sum(map(bool, flags)), len(flags))}", highlight=False)
    if len(labelled) < len(rows):
        console.print(f"  {len(rows) - len(labelled)} episodes are not labelled", highlight=False)


@show.register
def _(result: CheckedStore, console: Console) -> None:
    for line in result.journals_left:
        console.print(line, soft_wrap=True, markup=False)
    if result.recovered:
        count = len(result.recovered)
        console.print(f"brought back {count} episodes from journals that nobody writes to any more")
    ignored = [f"{result.labels}: {each}" for each in result.ignored_labels]
    for problem in (*result.broken, *ignored):
        console.print(f"[red]✗[/] {escape(problem)}", highlight=False, soft_wrap=True)
    if result.broken or ignored:
        return
    if result.without_checksum:
        console.print(f"{result.without_checksum} episodes are of an older version and have no checksum of all bytes: "
                      "`referee episodes convert` gives them one", soft_wrap=True)  # fmt: skip
    console.print(f"[green]✓[/] {result.episodes} episodes in {result.source} are whole", soft_wrap=True)
    warn(result.warnings, console)


@show.register
def _(result: Merged, console: Console) -> None:
    there = f"{result.before} were there, " if result.before else ""
    console.print(f"{result.out}: {there}{result.copied} episodes copied, {result.total} in all", soft_wrap=True)


@show.register
def _(result: Converted, console: Console) -> None:
    size = size_text(result.bytes)
    console.print(f"{result.out}: {result.episodes} episodes, {size}, as {result.export_format}", soft_wrap=True)
    for note in result.notes:
        console.print(f"  {note}", highlight=False, markup=False, soft_wrap=True)


def warn(lines: Iterable[str], console: Console) -> None:
    """What is wrong, aloud."""
    for line in lines:
        console.print(f"warning: {line}", style="bold yellow", highlight=False, markup=False, soft_wrap=True)


def _yes(value: bool | None) -> str:
    return "unknown" if value is None else "yes" if value else "no"


def size_text(count: float) -> str:
    """Bytes, for people."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
