"""Recipes of refinement: repair a model on recorded episodes, and explain afterwards what a run asked and learned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from referee.audit.judged import views
from referee.config import load
from referee.datasets.source import left_out, resolve
from referee.episodes import EpisodeStore
from referee.errors import RefereeError
from referee.labels.log import SUCCESS, UNKNOWN, LabelLog
from referee.learn.callbacks import refined_folder
from referee.models import Artifact
from referee.refine.book import MINED, Book
from referee.refine.labellers import LABELLERS, save_sheet
from referee.refine.loop import (
    BOOK,
    POOL,
    ROUNDS,
    VERSIONS,
    RefineOptions,
    Refiner,
    Round,
    read_rounds,
    up_to_date,
)
from referee.runners.gain import Gain, gain
from referee.runners.rundir import lock, locks_folder

BUDGET = 96
"""Frames to ask about, where nobody says how many: somebody waits at the keyboard."""


@dataclass(frozen=True, kw_only=True)
class Refined:
    """What a refinement came to."""

    out: Path
    artifact: Path | None
    """The better model; None where there is none."""
    retrained: bool
    """Whether any model was retrained and compared."""
    asked: int
    answered: int


@locks_folder
def refine(
    artifact: Path,
    episodes: Path,
    out: Path,
    console: Console,
    *,
    labeller: str = "terminal",
    options: RefineOptions | None = None,
    data: Path | None = None,
    mode: str = "per_step",
) -> Refined:
    """Ask about frames of recorded episodes, round by round, until the budget is used.

    What lies in `out` already is gone on with: first it is learned from, then the rest of the budget is asked about.
    mode: what the model will judge, `per_step` or `terminal`: then only last states are asked about.
    """
    options = options or RefineOptions(budget=BUDGET)
    if options.budget < 2:
        raise RefereeError(f"--budget {options.budget} asks nobody: give 2 or more")
    model = Artifact.load(artifact)
    if model.reference is None:
        raise RefereeError(f"{artifact} holds no reference of its training frames, so it cannot say what is strange")
    store = EpisodeStore(episodes, create=False)
    for line in left_out(store):
        console.print(f"warning: {line}", style="bold yellow", highlight=False, markup=False, soft_wrap=True)
    lock(out, fix="choose another --out")
    _check_cameras(out, model)
    refiner = Refiner(model, out, LABELLERS[labeller](), options, mode=mode, data=data)
    try:
        _rounds(refiner, store, console, mode, again=labeller == "terminal")
    except KeyboardInterrupt:
        console.print(f"what was answered is in {out}: the same command goes on from there", soft_wrap=True)
        raise
    return _outcome(refiner, out)


def _rounds(refiner: Refiner, store: EpisodeStore, console: Console, mode: str, *, again: bool) -> None:
    """again: ask those who are at the terminal about what they left unanswered."""
    step = 0
    if refiner.take_up():
        step = max((each.step for each in refiner.rounds), default=0) + 1
        console.print(f"going on with {refiner.folder}: {refiner.book.asked} frames were asked about", soft_wrap=True)
        if again:
            refiner.ask_again()
        _tell(refiner.round(step), console)
    images, truth = _frames(store, refiner.artifact, refiner.options.seed, last=mode == "terminal")
    fresh = _not_asked(images, refiner.book)
    console.print(f"{len(fresh)} frames of {len(store)} episodes; {refiner.left} of them may be asked about")
    rounds = -(-refiner.left // refiner.options.ask)
    for number, part in enumerate(np.array_split(fresh, rounds) if rounds else (), step + 1):
        if not len(part):
            continue
        verdict, summary = refiner.artifact.judge(images[part]), refiner.artifact.seen(images[part])[1]
        assert verdict.probability is not None
        known = truth[part] != UNKNOWN
        refiner.watch(images[part], summary, verdict.probability, truth[part] == SUCCESS if known.all() else None)
        _tell(refiner.round(number), console)


def _tell(done: Round | None, console: Console) -> None:
    if done is not None:
        console.print(_line(done), highlight=False)


def _outcome(refiner: Refiner, out: Path) -> Refined:
    return Refined(
        out=out,
        artifact=refiner.place() if any(each.swapped for each in refiner.rounds) else None,
        retrained=any(each.compared is not None for each in refiner.rounds),
        asked=refiner.book.asked,
        answered=refiner.rounds[-1].answered if refiner.rounds else 0,
    )


def _check_cameras(out: Path, model: Artifact) -> None:
    """Refuse to go on with what another kind of model asked about, or to refine into a folder of something else."""
    if not (out / BOOK).is_dir():
        strange = [path.name for path in out.iterdir() if not path.name.startswith(".")]
        if strange and not any((out / name).exists() for name in (ROUNDS, VERSIONS)):
            raise RefereeError(f"{out} holds something else than a refinement ({strange[0]}): choose another --out")
        return
    asked = {row.cameras for row in EpisodeStore(out / BOOK, create=False).rows.values()}
    if asked - {model.spec.cameras}:
        raise RefereeError(f"{out} was begun with a model of other cameras {sorted(asked)}: choose another --out")


def _not_asked(images: np.ndarray, book: Book) -> np.ndarray:
    """int[m]: the frames that are not in a book yet."""
    asked = {image.tobytes() for sheet in book.sheets() for image in sheet.images}
    return np.array([row for row, image in enumerate(images) if image.tobytes() not in asked], int)


def _frames(store: EpisodeStore, model: Artifact, seed: int, *, last: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Frames uint8[n,V,H,W,3] of all episodes in a random order, and their labels int8[n]; some, where there are many.

    The labels are those that were recorded or given before. last: only the last state of each episode.
    """
    log, random = LabelLog.of(store), np.random.default_rng(seed)
    each = max(1, POOL // max(1, len(store)))
    images, truth = [], []
    for episode in store:
        labels = resolve(episode, log)
        rows = np.array([len(labels) - 1]) if last else np.sort(random.permutation(len(labels))[:each])
        images.append(views(episode, model.spec.cameras, slice(None))[rows])
        truth.append(labels[rows])
    if not images:
        raise RefereeError(f"{store.root} holds no episodes")
    order = random.permutation(sum(map(len, truth)))
    return np.concatenate(images)[order], np.concatenate(truth)[order]


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


def _line(done: Round) -> str:
    step, asked, fooled, missed, loss, right, now, seconds = cells(done)
    return (
        f"round {step}: asked {asked}, fooled by {fooled}, missed {missed}; held out: loss {loss}, right {right}; "
        f"{now}, {seconds} s"
    )
