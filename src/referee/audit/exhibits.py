"""What to show of judged episodes: the most wrong frames, and the episodes worth a look."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from referee.audit.calibrate import levels
from referee.audit.judged import Judged, named, views
from referee.audit.statistics import Operating, Outcome, outcome
from referee.episodes import Episode, EpisodeStore
from referee.labels.log import FAILURE, SUCCESS
from referee.metrics.calibration import probability

APART = 5
"""States between two shown frames of one episode: neighbours look alike."""
MOST_OF_ONE = 3


@dataclass(frozen=True)
class WrongFrame:
    """A frame on the wrong side of the threshold."""

    episode: str
    frame: int
    label: int
    probability: float


@dataclass(frozen=True, eq=False)
class Shown:
    """An episode to look at, and why."""

    judged: Judged
    outcome: Outcome
    why: str
    """`worst`, `best` or `random`."""


def most_wrong(judged: Sequence[Judged], operating: Operating, count: int = 24) -> list[WrongFrame]:
    """The frames that the model is surest about and wrong: false positives first, then false negatives.

    Half of each where there are enough. Of one episode a few are taken, some states apart.
    """
    limit = np.float32(operating.threshold)
    positives: list[tuple[float, WrongFrame, int]] = []
    negatives: list[tuple[float, WrongFrame, int]] = []
    for each in judged:
        found = probability(each.logits, operating.temperature)
        scaled = each.logits.astype(np.float64) / operating.temperature  # tells apart what is rounded to 1
        for place in np.flatnonzero((each.labels == FAILURE) & (found >= limit)):
            wrong = WrongFrame(each.id, each.frame(int(place)), FAILURE, float(found[place]))
            positives.append((-scaled[place], wrong, int(place)))
        for place in np.flatnonzero((each.labels == SUCCESS) & (found < limit)):
            wrong = WrongFrame(each.id, each.frame(int(place)), SUCCESS, float(found[place]))
            negatives.append((scaled[place], wrong, int(place)))
    sides = [_apart(side, count) for side in (positives, negatives)]
    half = count // 2
    first = min(len(sides[0]), max(half, count - len(sides[1])))
    return sides[0][:first] + sides[1][: count - first]


def worth_a_look(
    judged: Sequence[Judged], operating: Operating, *, worst: int = 4, best: int = 2, random: int = 2
) -> list[Shown]:
    """The episodes that go most wrong (or nearly), some that go right, and some drawn by their ids alone."""
    found = [(each, outcome(each, operating)) for each in judged]
    found = [(each, what) for each, what in found if what.kind != "unlabelled"]
    bad = sorted(found, key=lambda pair: _badness(pair[0], pair[1], operating), reverse=True)
    good = bad[::-1]
    drawn = sorted(found, key=lambda pair: hashlib.sha256(pair[0].id.encode()).digest())
    # Of what goes right, successes and failures in turn.
    wins = [pair for pair in good if pair[0].succeeds]
    losses = [pair for pair in good if not pair[0].succeeds]
    turns = [pair for both in zip(wins, losses, strict=False) for pair in both] or good
    shown: list[Shown] = []
    taken: set[str] = set()
    for why, candidates, wanted in (("worst", bad, worst), ("best", turns, best), ("random", drawn, random)):
        for each, what in candidates:
            if wanted and each.id not in taken:
                shown.append(Shown(each, what, why))
                taken.add(each.id)
                wanted -= 1
    return shown


def read_frames(
    source: EpisodeStore | Iterable[Episode], cameras: Sequence[str], wanted: Mapping[str, Iterable[int]]
) -> dict[tuple[str, int], np.ndarray]:
    """uint8[V,H,W,3] of (episode, frame): read anew from where the episodes are, and only these."""
    found = {}
    for episode in named(source, lambda id: id not in wanted):
        frames = sorted(set(wanted[episode.meta.id]))
        for frame, images in zip(frames, views(episode, cameras, frames), strict=True):
            found[episode.meta.id, frame] = images
    return found


def _apart(side: list[tuple[float, WrongFrame, int]], count: int) -> list[WrongFrame]:
    """The surest first, but not all of one moment."""
    chosen: list[WrongFrame] = []
    places: dict[str, list[int]] = {}
    for _, wrong, place in sorted(side, key=lambda each: (each[0], each[1].episode, each[2])):
        near = places.setdefault(wrong.episode, [])
        if len(near) < MOST_OF_ONE and all(abs(place - other) >= APART for other in near):
            near.append(place)
            chosen.append(wrong)
        if len(chosen) == count:
            break
    return chosen


def _badness(judged: Judged, what: Outcome, operating: Operating) -> tuple[int, float]:
    """First by what happened, then by how far from right it was."""
    top = float(levels(judged, operating.temperature, operating.gate_k, operating.gate_n).max())
    grave = {"paid": 5, "missed": 4, "early": 3, "detected": 1, "refused": 1}[what.kind]
    if what.kind == "missed":
        return grave, 1 - top
    if what.kind == "early":
        return grave, float(abs(what.fire - judged.first_success))
    if what.kind == "detected":
        return grave, what.steps / len(judged.labels)
    return grave, top
