"""How far a model that tells trends can be trusted: labels, calibration, and whether its sum follows the progress."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from referee.config.datasets import WindowConfig
from referee.datasets.source import resolve
from referee.datasets.windows import LABELS, UNCLEAR, label_windows, window_images
from referee.episodes import Episode
from referee.errors import RefereeError
from referee.labels.log import LabelLog
from referee.metrics.calibration import Reliability, reliability
from referee.metrics.ranking import spearman, voc
from referee.models.vlm.answers import INVALID, Answers, WindowModel
from referee.models.window import Window
from referee.training.vlm.scores import TrendScores
from referee.training.vlm.segments import Segment

BATCH = 64
SHORTEST = 5
"""Windows of an episode below which an order says nothing."""
SHOWN, MOST_OF_ONE = 12, 2
"""Wrong windows that are kept to be looked at, and how many of one episode."""


@dataclass(frozen=True)
class Labelled:
    """A window, its true label, and where in which episode it is."""

    window: Window
    label: str
    episode: str
    start: int
    change: float


@dataclass(frozen=True, eq=False)
class WrongWindow:
    """A window that was called by another name than its own."""

    case: Labelled
    said: str
    probability: float
    """Of what was said;"""
    of_truth: float
    """and of its own name."""

    @property
    def badness(self) -> tuple[bool, float]:
        """Up called down, or the reverse, is worse than any unclear word; then by how sure it was."""
        return UNCLEAR not in (self.case.label, self.said), self.probability - self.of_truth


@dataclass(frozen=True, eq=False)
class TrendAudit:
    """What came of it."""

    scores: TrendScores
    reliability: Reliability
    """The likeliest label's probability beside how often it is right."""
    voc: float
    """Mean Spearman between the running sum of P(positive) - P(negative) and time, of episodes that got ahead."""
    following: float
    """The same between that sum and the true progress, of all episodes."""
    counts: dict[str, int]
    said: dict[str, int]
    """Written answers by label, of some windows; `invalid` are those that could not be read."""
    notes: list[str] = field(default_factory=list)
    wrong: tuple[WrongWindow, ...] = ()
    """The worst of them first."""
    example: Window | None = None
    """One of the windows, to show what is asked."""

    @property
    def ece(self) -> float:
        """How far the likeliest label's probability is from how often it is right."""
        return self.reliability.ece

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **self.scores.to_json(),
            **self.scores.numbers(),
            "ece": self.ece,
            "voc": self.voc,
            "following": self.following,
            "counts": self.counts,
            "written": self.said,
            "notes": self.notes,
            "reliability": {name: getattr(self.reliability, name).tolist() for name in ("said", "true", "count")},
        }


def of_segments(segments: Iterable[Segment]) -> Iterator[Labelled]:
    """Windows out of files."""
    return (Labelled(each.window(), each.label, each.episode, each.start, each.change) for each in segments)


def of_episodes(
    episodes: Iterable[Episode], options: WindowConfig, labels: LabelLog | None = None
) -> Iterator[Labelled]:
    """All windows of episodes, labelled by the progress in them; those shorter than a window have none."""
    for number, episode in enumerate(episodes):
        task = episode.meta.description or options.task or episode.meta.task
        for cut in label_windows(episode, resolve(episode, labels), options):
            frames = window_images(episode, cut)
            yield Labelled(Window(frames, task), cut.label, cut.episode or f"{number:06d}", cut.start, cut.change)


def audit(model: WindowModel, windows: Iterable[Labelled], *, writer: WindowModel | None = None) -> TrendAudit:
    """Judge labelled windows with a model that gives probabilities.

    writer: the same model as it writes its answers, asked about some windows, to see whether they can be read.
    """
    source, answers = iter(windows), list[Answers]()
    rows: list[tuple[str, str, int, float]] = []
    said: dict[str, int] = dict.fromkeys((*LABELS, INVALID), 0)
    wrong: list[WrongWindow] = []
    example = None
    while some := list(islice(source, BATCH)):
        asked = [each.window for each in some]
        example = example or asked[0]
        answers.append(model.judge(asked))
        wrong = _worst([*wrong, *_wrong(some, answers[-1])], 4 * SHOWN)
        if writer is not None and len(rows) % (8 * BATCH) == 0:
            for label, count in writer.judge(asked).counts.items():
                said[label] += count
        rows += [(each.label, each.episode, each.start, each.change) for each in some]
    if not rows:
        raise RefereeError("there is no window to judge: episodes must be as long as a window, and say their progress")
    joined = Answers.join(answers)
    if joined.probabilities is None:
        raise RefereeError("an audit needs probabilities: use the read-out `score`")
    found = measure(rows, joined.probabilities, said)
    return replace(found, wrong=tuple(_worst(wrong, SHOWN)), example=example)


def _wrong(some: Sequence[Labelled], answers: Answers) -> Iterator[WrongWindow]:
    chances = answers.probabilities
    for number, case in enumerate(some if chances is not None else ()):
        assert chances is not None
        best, own = int(chances[number].argmax()), LABELS.index(case.label)
        if best != own:
            yield WrongWindow(case, LABELS[best], float(chances[number, best]), float(chances[number, own]))


def _worst(wrong: Sequence[WrongWindow], count: int) -> list[WrongWindow]:
    """The worst, a few of each episode that share no frame: neighbours look alike."""
    chosen: list[WrongWindow] = []
    for each in sorted(wrong, key=lambda one: one.badness, reverse=True):
        mine = [other.case.start for other in chosen if other.case.episode == each.case.episode]
        apart = all(abs(start - each.case.start) >= len(each.case.window) for start in mine)
        if len(mine) < MOST_OF_ONE and apart and len(chosen) < count:
            chosen.append(each)
    return chosen


def measure(
    rows: Sequence[tuple[str, str, int, float]], probabilities: np.ndarray, said: dict[str, int] | None = None
) -> TrendAudit:
    """All numbers; rows are label, episode, start and true change of each window."""
    truth = [row[0] for row in rows]
    scores = TrendScores.of(truth, probabilities)
    right = np.array([LABELS[best] == label for best, label in zip(probabilities.argmax(1), truth, strict=True)])
    sure = np.clip(probabilities.max(1), 0.0, 1.0)
    orders, follows = [], []
    for episode in sorted({row[1] for row in rows}):
        mine = sorted((row[2], number) for number, row in enumerate(rows) if row[1] == episode)
        if len(mine) < SHORTEST:
            continue
        places = [number for _, number in mine]
        summed = np.cumsum(probabilities[places, 0] - probabilities[places, 1], dtype=np.float64)
        truly = np.cumsum([rows[number][3] for number in places])
        follows.append(spearman(summed, truly))
        if truly[-1] > 0:
            orders.append(voc(summed))
    counts = {"windows": len(rows), "episodes": len({row[1] for row in rows}), "episodes with an order": len(follows)}
    found = reliability(right.astype(np.int8), sure)
    return TrendAudit(scores, found, _mean(orders), _mean(follows), counts, said or {})


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if np.isfinite(value)]
    return float(np.mean(known)) if known else float("nan")
