"""What a part of the campaign counts, and the table that it becomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

COLUMNS = ("tried", "executions", "tracebacks", "hangs", "memory", "lost", "wrong")
SHOWN = 12
"""Kinds of defects of a part that are printed under the table."""


@dataclass
class Tally:
    """One row. All columns but the first count defects."""

    part: str
    tried: int = 0
    executions: int = 0
    """Code in a file that ran."""
    tracebacks: int = 0
    """Errors that were not one line."""
    hangs: int = 0
    """What had to be ended after its time limit."""
    memory: int = 0
    """What went beyond its memory limit."""
    lost: int = 0
    """Acknowledged data that is gone."""
    wrong: int = 0
    """Anything else that is not as promised."""
    notes: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    @property
    def defects(self) -> int:
        """Sum of all columns but the first."""
        return sum(getattr(self, name) for name in COLUMNS[1:])

    def defect(self, column: str, note: str, count: int = 1) -> None:
        """Count a defect, and say what it was."""
        setattr(self, column, getattr(self, column) + count)
        self.notes.append(f"{column}: {note}")

    def expect(self, holds: bool, note: str, column: str = "wrong") -> None:
        """Count a defect unless the promise holds."""
        if not holds:
            self.defect(column, note)

    @contextmanager
    def trial(self, name: str, count: int = 1) -> Iterator[None]:
        """An attempt, or what belongs to one (count=0); an error that nobody expected is a traceback."""
        self.tried += count
        try:
            yield
        except Exception as error:
            text = " ".join(str(error).split())[:300]
            self.defect("tracebacks", f"{name}: {type(error).__name__}: {text}")

    def worst(self, name: str, value: float) -> None:
        """Keep the largest value of a measured quantity."""
        self.figures[name] = max(value, self.figures.get(name, value))


def as_row(value: Any) -> Tally:
    """A `Tally`, from one, or from any object or mapping with the same names."""
    if isinstance(value, Tally):
        return value
    given = dict(value) if isinstance(value, dict) else asdict(value)
    names = {name: given[name] for name in Tally.__dataclass_fields__ if name in given}
    return Tally(**names)


def table(rows: Iterable[Tally]) -> str:
    """Markdown: one row per part."""
    lines = [f"| part | {' | '.join(COLUMNS)} |", f"|---|{'--:|' * len(COLUMNS)}"]
    lines += [f"| {row.part} | {' | '.join(f'{getattr(row, name):,}' for name in COLUMNS)} |" for row in rows]
    return "\n".join(lines)


def remarks(rows: Iterable[Tally]) -> str:
    """What was measured, what was left out, and each defect in one line."""
    lines = []
    for row in rows:
        lines += [f"{row.part}: {name}: {value:.3g}" for name, value in row.figures.items()]
        lines += [f"{row.part}: left out: {reason}" for reason in row.skipped]
        counted = Counter(row.notes).most_common()
        lines += [f"{row.part}: {count} × {note}" for note, count in counted[:SHOWN]]
        if len(counted) > SHOWN:
            lines.append(f"{row.part}: and {len(counted) - SHOWN} other kinds")
    return "\n".join(lines)
