"""Two models on the same episodes: what differs, and whether it is more than chance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from referee.audit.judged import Judged, Scorer, cameras_of, judge, named
from referee.audit.measure import KnownEpisodes
from referee.audit.statistics import Operating, Statistics
from referee.episodes import Episode, EpisodeStore
from referee.errors import RefereeError
from referee.labels.log import LabelLog
from referee.metrics.intervals import DRAWS, Estimate, episode_draws, percentile_interval

ROWS = {
    "auroc": ("frame AUROC", 1),
    "average_precision": ("average precision", 1),
    "precision": ("frame precision", 1),
    "recall": ("frame recall", 1),
    "false_positive_rate": ("frame false-positive rate", -1),
    "episode_false_positive_rate": ("episode false-positive rate", -1),
    "episode_recall": ("episode recall", 1),
    "fire_precision": ("precision of the gate", 1),
    "steps_to_detect": ("steps to detect, median", -1),
    "ece": ("ECE", -1),
    "brier": ("Brier", -1),
    "voc_success": ("VOC, success", 1),
    "voc_failure": ("VOC, failure", 0),
}
"""Their names for people, and whether more is better (1), worse (-1) or neither."""


@dataclass(frozen=True)
class Difference:
    """One number of both models; `difference` is B - A, with its paired interval."""

    name: str
    a: float
    b: float
    difference: Estimate

    @property
    def better(self) -> str:
        """`A` or `B` where the interval leaves no doubt, else nothing."""
        sign = ROWS[self.name][1]
        if not sign or not (self.difference.low > 0 or self.difference.high < 0):
            return ""
        return "B" if self.difference.value * sign > 0 else "A"


@dataclass(frozen=True)
class Comparison:
    """The differences between two models."""

    rows: tuple[Difference, ...]
    episodes: int
    names: tuple[str, str] = ("A", "B")
    notes: tuple[str, ...] = ()
    """What must be said beside the numbers."""

    def __getitem__(self, name: str) -> Difference:
        return next(row for row in self.rows if row.name == name)

    def to_json(self) -> dict[str, Any]:
        """Plain values; null where something could not be measured."""
        rows = {
            row.name: {"a": row.a, "b": row.b, **vars(row.difference), "better": row.better or None}
            for row in self.rows
        }
        return {"a": self.names[0], "b": self.names[1], "episodes": self.episodes, "rows": _plain(rows)}

    def __str__(self) -> str:
        head = f"A = {self.names[0]}, B = {self.names[1]}, {self.episodes} episodes, 95 % intervals over episodes"
        lines = [head, "", f"{'':30}{'A':>9}{'B':>9}{'B - A':>10}   interval"]
        for row in self.rows:
            gap = row.difference
            interval = "" if np.isnan(gap.value) else f"[{gap.low:+.4f}, {gap.high:+.4f}]"
            better = f"  {row.better} is better" if row.better else ""
            numbers = f"{_number(row.a)}{_number(row.b)}{_number(gap.value, '+', 10)}"
            lines.append(f"{ROWS[row.name][0]:30}{numbers}   {interval}{better}")
        return "\n".join([*lines, *(f"warning: {note}" for note in self.notes)])


def compare(
    a: Scorer,
    b: Scorer,
    source: EpisodeStore | Iterable[Episode],
    labels: LabelLog | None = None,
    *,
    names: tuple[str, str] = ("A", "B"),
    draws: int = DRAWS,
    seed: int = 0,
) -> Comparison:
    """Two artifacts on episodes that neither was trained on; those that one was are left out for both."""
    both = [(KnownEpisodes.of(each.provenance), cameras_of(each)[0]) for each in (a, b)]
    seen = {
        episode.meta.id
        for episode in named(source)
        if any(known.match(episode, camera) in ("id", "equal") for known, camera in both)
    }
    judged = [judge(each, source, labels, skip=lambda id: id in seen) for each in (a, b)]
    if not judged[0]:
        raise RefereeError("there is no episode that neither model was trained on: compare them on others")
    return compare_judged(judged[0], judged[1], a.calibration, b.calibration, names=names, draws=draws, seed=seed)


def compare_judged(
    a: Sequence[Judged],
    b: Sequence[Judged],
    operating_a: Operating,
    operating_b: Operating,
    *,
    names: tuple[str, str] = ("A", "B"),
    draws: int = DRAWS,
    seed: int = 0,
) -> Comparison:
    """The same for episodes that were judged already; both must be of the same episodes, in the same order."""
    if [each.id for each in a] != [each.id for each in b] or any(
        not np.array_equal(one.labels, other.labels) for one, other in zip(a, b, strict=True)
    ):
        raise RefereeError("the two models were judged on different episodes or labels")
    both = [Statistics(a, operating_a), Statistics(b, operating_b)]
    once, drawn = np.ones((1, len(a))), episode_draws(len(a), draws=draws, seed=seed)
    points, spreads = [each.evaluate(once) for each in both], [each.evaluate(drawn) for each in both]
    rows = []
    for name in ROWS:
        first, second = float(points[0][name][0]), float(points[1][name][0])
        interval = percentile_interval(spreads[1][name] - spreads[0][name])
        rows.append(Difference(name, first, second, Estimate(second - first, *interval)))
    return Comparison(tuple(rows), len(a), names)


def _number(value: float, sign: str = "", width: int = 9) -> str:
    return f"{'–':>{width}}" if np.isnan(value) else f"{value:{sign}{width}.4f}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return None if isinstance(value, float) and np.isnan(value) else value
