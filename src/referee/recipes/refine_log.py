"""What a refinement asked and learned, round by round."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from referee.config import load
from referee.episodes import EpisodeStore
from referee.errors import RefereeError
from referee.learn.callbacks import refined_folder
from referee.refine.book import MINED, Book
from referee.refine.labellers import save_sheet
from referee.refine.loop import (
    BOOK,
    ROUNDS,
    VERSIONS,
    Round,
    read_rounds,
    up_to_date,
)
from referee.runs.gain import Gain, gain


@dataclass(frozen=True, kw_only=True)
class RefinementLog:
    """What a refinement asked and heard, and what came of it."""

    rounds: tuple[Round, ...]
    asked: int
    successes: int
    failures: int
    mined: int
    """Frames of the policy's first steps that were taken as failures without asking."""
    gained: Gain | str
    """Or why nobody knows."""
    book: Path
    """Questions and answers."""
    versions: Path | None
    """Retrained models; None where there are none."""
    sheets: Path | None
    """Pictures of the questions; None where nobody asked for them."""


def log(run: Path, *, sheets: Path | None = None) -> RefinementLog:
    """Explain a refinement: each round, what it found and what came of it; what all of it cost and brought.

    run: of a policy, or the folder of `referee refine run`. sheets: where to draw the frames that were asked about.
    """
    folder = refined_folder(run) if refined_folder(run).is_dir() else Path(run)
    rounds = read_rounds(folder)
    if not rounds:
        raise RefereeError(f"{run} holds no refinement: there is no {ROUNDS}")
    store = EpisodeStore(folder / BOOK, create=False)
    cameras = next(iter(store.rows.values())).cameras
    book = Book(folder / BOOK, cameras)
    found = book.sheets()
    if sheets is not None:
        for number, sheet in enumerate(found, 1):
            save_sheet(sheets / f"{number:03d}_step_{sheet.step}.png", sheet)
    answers = [sheet.answers[~sheet.of(MINED)] for sheet in found]
    successes, failures = (sum(int((each == value).sum()) for each in answers) for value in (1, 0))
    return RefinementLog(
        rounds=tuple(up_to_date(rounds, found)),
        asked=book.asked,
        successes=successes,
        failures=failures,
        mined=sum(int(sheet.of(MINED).sum()) for sheet in found),
        gained=gain(run, rounds, _seconds_per_label(run)),
        book=folder / BOOK,
        versions=folder / VERSIONS if (folder / VERSIONS).is_dir() else None,
        sheets=sheets,
    )


def _seconds_per_label(run: Path) -> float | None:
    """What an answer costs by the configuration of a run; None where there is none that can be read."""
    try:
        return load(str(run / "config.yaml")).config.reward.refine.seconds_per_label
    except RefereeError:
        return None


def cells(done: Round) -> tuple[str, ...]:
    """A round in words: step, asked, fooled, missed, loss, right answers, the model now, seconds."""
    compared = done.compared
    pairs = ("–", "–") if compared is None else (
        f"{compared.loss[0]:.3f} → {compared.loss[1]:.3f}", f"{compared.accuracy[0]:.0%} → {compared.accuracy[1]:.0%}",
    )  # fmt: skip
    now = f"v{done.version}" + (" (new)" if done.swapped else "")
    return (f"{done.step:,}", str(done.asked), str(done.fooled), str(done.missed), *pairs, now,
            f"{sum(done.seconds.values()):.0f}")  # fmt: skip


def round_line(done: Round) -> str:
    step, asked, fooled, missed, loss, right, now, seconds = cells(done)
    return (
        f"round {step}: asked {asked}, fooled by {fooled}, missed {missed}; held out: loss {loss}, right {right}; "
        f"{now}, {seconds} s"
    )
