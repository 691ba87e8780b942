"""How far a model that tells trends can be trusted: labels, calibration, and whether its sum follows the progress."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from referee.datasets.source import resolve
from referee.datasets.windows import LABELS, WindowOptions, label_windows, window_images
from referee.episodes import Episode
from referee.errors import RefereeError
from referee.labels.log import LabelLog
from referee.metrics.calibration import ece
from referee.metrics.ranking import spearman, voc
from referee.models.vlm.answers import INVALID, Answers, WindowModel
from referee.models.window import Window
from referee.training.vlm.scores import TrendScores
from referee.training.vlm.segments import Segment

BATCH = 64
SHORTEST = 5
"""Windows of an episode below which an order says nothing."""


@dataclass(frozen=True)
class Labelled:
    """A window, its true label, and where in which episode it is."""

    window: Window
    label: str
    episode: str
    start: int
    change: float


@dataclass(frozen=True, eq=False)
class TrendAudit:
    """What came of it."""

    scores: TrendScores
    ece: float
    """How far the likeliest label's probability is from how often it is right."""
    voc: float
    """Mean Spearman between the running sum of P(positive) - P(negative) and time, of episodes that got ahead."""
    following: float
    """The same between that sum and the true progress, of all episodes."""
    counts: dict[str, int]
    said: dict[str, int]
    """Written answers by label, of some windows; `invalid` are those that could not be read."""
    notes: list[str] = field(default_factory=list)

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
        }


def of_segments(segments: Iterable[Segment]) -> Iterator[Labelled]:
    """Windows out of files."""
    return (Labelled(each.window(), each.label, each.episode, each.start, each.change) for each in segments)


def of_episodes(
    episodes: Iterable[Episode], options: WindowOptions, labels: LabelLog | None = None
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
    while some := list(islice(source, BATCH)):
        asked = [each.window for each in some]
        answers.append(model.judge(asked))
        if writer is not None and len(rows) % (8 * BATCH) == 0:
            for label, count in writer.judge(asked).counts.items():
                said[label] += count
        rows += [(each.label, each.episode, each.start, each.change) for each in some]
    if not rows:
        raise RefereeError("there is no window to judge: episodes must be as long as a window, and say their progress")
    joined = Answers.join(answers)
    if joined.probabilities is None:
        raise RefereeError("an audit needs probabilities: use the read-out `score`")
    return measure(rows, joined.probabilities, said)


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
    found = ece(right.astype(np.int8), sure)
    return TrendAudit(scores, found, _mean(orders), _mean(follows), counts, said or {})


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if np.isfinite(value)]
    return float(np.mean(known)) if known else float("nan")
