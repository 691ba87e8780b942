"""Who answers: a simulation that stands in for a person, a person in the terminal, or anybody through the label log."""

from __future__ import annotations

import re
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Protocol

import numpy as np
from PIL import Image
from rich.console import Console

from referee.errors import RefereeError
from referee.pictures import atomic_save, banner, border
from referee.refine.book import Book, Sheet

COLUMNS, TILE = 6, 160
UNDO = ("u", "undo")
PIECE = 0.1
"""Seconds of waiting for an answer, after which signals are heard."""


class Left(Exception):
    """Whoever was asked pressed Ctrl-C."""


class Labeller(Protocol):
    """Answers a sheet, now or later: answers are words in the book's log."""

    def ask(self, book: Book, sheet: Sheet, truth: np.ndarray | None) -> None:
        """truth: bool[k], where the frames come from a simulation."""
        ...


class Truth:
    """The simulation answers, as a person would who is never wrong."""

    def ask(self, book: Book, sheet: Sheet, truth: np.ndarray | None) -> None:
        """Write down what the simulation knows."""
        if truth is None:
            raise RefereeError("labeller truth needs a simulation that knows it: use terminal or log")
        book.answer(sheet, [bool(each) for each in truth], source="env", who="simulation")


class Terminal:
    """A person looks at a picture of all frames, and types the numbers of those that are a success."""

    def __init__(self, console: Console | None = None, read: Callable[[str], str] | None = None) -> None:
        if read is None and not sys.stdin.isatty():
            raise RefereeError("labeller terminal needs a terminal to ask in: use log, and label with another tool")
        self._console = console or Console()
        self._read = read or self._line
        self._before: Sheet | None = None
        self.room: Callable[[], AbstractContextManager[None]] = nullcontext
        """Open while a question is in the terminal: whoever draws there makes room."""

    def ask(self, book: Book, sheet: Sheet, truth: np.ndarray | None) -> None:
        """Ask until the answer can be read; Ctrl-C or Ctrl-D leaves the question unanswered."""
        with self.room():
            try:
                self._ask(book, sheet)
            except (EOFError, Left):
                self._console.print("\nno answer; it may still come through the label log", highlight=False)

    def _ask(self, book: Book, sheet: Sheet, *, anew: bool = False) -> None:
        """anew: there is an answer already, which the new one replaces."""
        self._show(book, sheet)
        while True:
            typed = self._typed()
            if typed.strip().lower() in UNDO:
                self._take_back(book, sheet)
                continue
            try:
                values = parse(typed, len(sheet))
            except ValueError as error:
                self._console.print(f"{error}; once more", markup=False)
                continue
            book.answer(sheet, values, source="keyboard", who="terminal", anew=anew)
            self._before = sheet
            return

    def _show(self, book: Book, sheet: Sheet) -> None:
        path = book.folder / "sheets" / f"{sheet.id}.png"
        save_sheet(path, sheet)
        back = "; u to answer the sheet before once more" if self._before is not None else ""
        self._console.print(
            f"{len(sheet)} frames are in [bold]{path}[/bold]. Type the numbers of those that show a success, as "
            f"1 4 7-9; ?5 where you cannot tell; nothing where none does{back}.", soft_wrap=True,
        )  # fmt: skip

    def _take_back(self, book: Book, sheet: Sheet) -> None:
        """Ask about the sheet before once more, then show this one again."""
        before, self._before = self._before, None
        if before is None:
            self._console.print("there is no answer to take back; once more")
            return
        try:
            self._ask(book, before, anew=True)
        finally:
            self._before = before
        self._show(book, sheet)

    def _typed(self) -> str:
        with _leaving():
            return self._read("successes: ")

    def _line(self, question: str) -> str:
        """What is typed. It waits in pieces: a Ctrl-C just before one long read would be heard only after an answer."""
        self._console.print(question, end="")
        while not select.select([sys.stdin], [], [], PIECE)[0]:
            pass
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line


class Log:
    """Nobody is asked: whoever looks at the store may append to its log, and is heard from the next round on."""

    def ask(self, book: Book, sheet: Sheet, truth: np.ndarray | None) -> None:
        """Draw the frames, for a tool that shows them."""
        save_sheet(book.folder / "sheets" / f"{sheet.id}.png", sheet)


@contextmanager
def _leaving() -> Iterator[None]:
    """Ctrl-C leaves a question, after whoever listens for it has heard it; else one would go on waiting for an answer.

    Signals are heard by the main thread only.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def press(number: int, frame: FrameType | None) -> None:
        before(number, frame)
        raise Left

    signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


LABELLERS = {"truth": Truth, "terminal": Terminal, "log": Log}


def parse(text: str, count: int) -> list[bool | None]:
    """Answers out of what a person typed; ValueError says what cannot be read. Numbers count from 1."""
    values: list[bool | None] = [False] * count
    for piece in text.replace(",", " ").split():
        found = re.fullmatch(r"(\??)(\d+)(?:-(\d+))?", piece)
        if found is None:
            raise ValueError(f"{piece!r} is no number, range as 3-5, or ?number")
        first, last = int(found[2]), int(found[3] or found[2])
        if not 1 <= first <= last <= count:
            raise ValueError(f"{piece} is not among 1..{count}")
        values[first - 1 : last] = [None if found[1] else True] * (last - first + 1)
    return values


def save_sheet(path: Path, sheet: Sheet) -> None:
    """A numbered picture of the frames, the views of each side by side, with what the model says of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tiles = [_tile(views, f"{number}: model {said:.0%}") for number, (views, said)
             in enumerate(zip(sheet.images, sheet.probability, strict=True), 1)]  # fmt: skip
    atomic_save(Image.fromarray(_grid(tiles, COLUMNS)), path)


def _tile(views: np.ndarray, text: str) -> np.ndarray:
    """The views of a frame in a row, large enough to see, with a line of text."""
    large = [np.asarray(Image.fromarray(view).resize((TILE, TILE), Image.Resampling.NEAREST)) for view in views]
    return border(banner(np.concatenate(large, 1), text), (200, 200, 200), 2)


def _grid(tiles: Sequence[np.ndarray], columns: int) -> np.ndarray:
    columns = max(1, min(columns, len(tiles)))
    blank = np.full_like(tiles[0], 255)
    filled = [*tiles, *[blank] * (-len(tiles) % columns)]
    rows = [np.concatenate(filled[start : start + columns], 1) for start in range(0, len(filled), columns)]
    return np.concatenate(rows)
