"""Recipes of refinement: repair a model on recorded episodes, and explain afterwards what a run asked and learned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from referee.datasets.source import left_out
from referee.episodes import EpisodeStore
from referee.errors import RefereeError
from referee.labels.log import SUCCESS, UNKNOWN
from referee.models import Artifact
from referee.recipes.refine_log import round_line
from referee.refine.labellers import LABELLERS
from referee.refine.loop import (
    RefineOptions,
    Refiner,
    Round,
)
from referee.refine.recorded import check_same_model, not_asked, recorded_frames
from referee.runs.folder import lock, locks_folder

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
    check_same_model(out, model)
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
    images, truth = recorded_frames(store, refiner.artifact, refiner.options.seed, last=mode == "terminal")
    fresh = not_asked(images, refiner.book)
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
        console.print(round_line(done), highlight=False)


def _outcome(refiner: Refiner, out: Path) -> Refined:
    return Refined(
        out=out,
        artifact=refiner.place() if any(each.swapped for each in refiner.rounds) else None,
        retrained=any(each.compared is not None for each in refiner.rounds),
        asked=refiner.book.asked,
        answered=refiner.rounds[-1].answered if refiner.rounds else 0,
    )
