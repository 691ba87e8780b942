"""Which judged frames to ask a person about: few, telling, and unlike each other. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from referee.errors import RefereeError

REASONS = ("random", "firing", "unsure", "strange")
"""In the order in which they choose."""
SHARES: Mapping[str, float] = MappingProxyType({"random": 0.25, "firing": 0.25, "unsure": 0.25, "strange": 0.25})
SHORTLIST = 3
"""So many times as many frames as are wanted for a reason compete for being unlike each other."""
_EDGE = 1e-6


@dataclass(frozen=True, eq=False)
class Candidates:
    """Frames that were judged, a row each."""

    probability: np.ndarray
    """f32[n]: what the model says."""
    distance: np.ndarray
    """f32[n]: how unlike the frames of training they are (`Reference.distance`)."""
    summary: np.ndarray
    """f32[n,d]: where they lie for the model (`RewardModel.embed`)."""

    def __post_init__(self) -> None:
        sizes = {len(self.probability), len(self.distance), len(self.summary)}
        if len(sizes) > 1 or self.summary.ndim != 2:
            raise RefereeError(f"probabilities, distances and summaries of {sorted(sizes)} frames do not fit")

    def __len__(self) -> int:
        return len(self.probability)


@dataclass(frozen=True, eq=False)
class Chosen:
    """Frames to ask about, and why each was chosen."""

    rows: np.ndarray
    """int[k], each row at most once."""
    reasons: tuple[str, ...]

    def of(self, reason: str) -> np.ndarray:
        """int[·]: the rows chosen for that reason."""
        return self.rows[[each == reason for each in self.reasons]]


def choose(
    frames: Candidates,
    count: int,
    *,
    threshold: float,
    random: np.random.Generator,
    confirmed: np.ndarray | None = None,
    shares: Mapping[str, float] = SHARES,
) -> Chosen:
    """At most `count` frames.

    `random`: drawn evenly, so that what the model gets wrong among them says how often it is wrong now.
    `firing`: called a success, and far from every success that somebody has confirmed.
    `unsure`: near the threshold. `strange`: unlike the frames of training.
    Where a reason finds too few, the others get its share. confirmed: f32[m,d], summaries of true successes.
    """
    unknown = set(shares) - set(REASONS)
    if unknown or min(shares.values(), default=0) < 0 or not sum(shares.values()) > 0:
        raise RefereeError(f"shares {dict(shares)} must be of {', '.join(REASONS)}, not negative, and not all 0")
    count = max(0, min(count, len(frames)))
    left = np.ones(len(frames), bool)
    rows: list[int] = []
    reasons: list[str] = []

    def take(reason: str, wanted: int) -> None:
        ranked = _rank(reason, frames, threshold, confirmed, random)
        ranked = ranked[left[ranked]]
        near = ranked if reason == "random" else ranked[: SHORTLIST * wanted]
        found = near[:wanted] if reason == "random" else spread(frames.summary, near, wanted, frames.summary[rows])
        left[found] = False
        rows.extend(found.tolist())
        reasons.extend([reason] * len(found))

    for reason, wanted in zip(REASONS, _parts(count, shares), strict=True):
        take(reason, wanted)
    for reason in [name for name in REASONS if shares.get(name, 0) > 0] * 2:
        take(reason, count - len(rows))
    return Chosen(np.array(rows, np.int64), tuple(reasons))


def spread(summary: np.ndarray, rows: np.ndarray, wanted: int, known: np.ndarray) -> np.ndarray:
    """int[k]: rows unlike each other and unlike what is known, greedily; the first row wins among equals.

    summary: f32[n,d]; rows: int[m], the better ones first; known: f32[·,d].
    """
    places = summary[rows].astype(np.float64)
    nearest = np.full(len(rows), np.inf)
    for each in known:
        nearest = np.minimum(nearest, ((places - each) ** 2).sum(1))
    chosen: list[int] = []
    for _ in range(min(wanted, len(rows))):
        best = int(np.argmax(nearest))
        chosen.append(best)
        nearest = np.minimum(nearest, ((places - places[best]) ** 2).sum(1))
        nearest[chosen] = -1.0
    return rows[chosen]


def _rank(
    reason: str, frames: Candidates, threshold: float, confirmed: np.ndarray | None, random: np.random.Generator
) -> np.ndarray:
    """int[·]: the rows that a reason may choose, the best first."""
    if reason == "random":
        return random.permutation(len(frames))
    if reason == "strange":
        return np.argsort(-frames.distance, kind="stable")
    if reason == "unsure":
        return np.argsort(np.abs(_logit(frames.probability) - _logit(np.float64(threshold))), kind="stable")
    firing = np.flatnonzero(frames.probability >= threshold)
    away = frames.distance[firing].astype(np.float64)
    if confirmed is not None and len(confirmed):
        squares = [((confirmed.astype(np.float64) - each) ** 2).sum(1).min() for each in frames.summary[firing]]
        away = np.array(squares)
    return firing[np.argsort(-away, kind="stable")]


def _parts(count: int, shares: Mapping[str, float]) -> list[int]:
    """Whole numbers in the proportion of the shares, `count` in all."""
    whole = sum(shares.values())
    bounds = np.rint(np.cumsum([shares.get(name, 0.0) / whole for name in REASONS]) * count).astype(int)
    return np.diff(bounds, prepend=0).tolist()


def _logit(probability: np.ndarray | np.float64) -> np.ndarray:
    inside = np.clip(np.asarray(probability, np.float64), _EDGE, 1 - _EDGE)
    return np.log(inside) - np.log1p(-inside)
