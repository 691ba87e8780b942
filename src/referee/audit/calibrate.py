"""From logits to decisions: temperature, threshold and gate, chosen on validation for a stated false-positive rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from referee.audit.judged import Judged
from referee.errors import RefereeError
from referee.labels.log import FAILURE, SUCCESS, UNKNOWN
from referee.metrics.calibration import logit, nll, probability, sigmoid
from referee.metrics.gate import check_gate, gate_level
from referee.metrics.intervals import auroc_interval
from referee.metrics.ranking import auroc
from referee.metrics.rates import wilson

GATES = ((1, 1), (2, 2), (2, 3), (3, 3), (3, 4), (3, 5), (4, 5), (5, 5))
TARGET = 0.01
TEMPERATURES = (0.05, 20.0)
SURE = 0.9999
"""Beyond it, and below 1 - it, a probability is only as good as the rounding: not room to put a threshold in."""

BLUR, GRID = 0.5, 0.05
"""In log-odds: how far around a threshold is looked, and how finely."""


@dataclass(frozen=True)
class Choice:
    """What was chosen, and what it did on the episodes that it was chosen on."""

    temperature: float
    threshold: float
    """A calibrated probability at or above it counts as success."""
    gate_k: int
    gate_n: int
    target_episode_fpr: float
    measured: dict[str, Any] = field(default_factory=dict)
    terminal_threshold: float | None = None
    """The same for the last state of an episode by itself; None where no validation episode ends in success."""

    def fields(self) -> dict[str, Any]:
        """By the names that an artifact's calibration has: `Calibration(**choice.fields())`."""
        return dict(vars(self))

    @property
    def notes(self) -> list[str]:
        """What a user must know about how good this choice can be."""
        return list(self.measured.get("notes", []))


def calibrate(judged: Sequence[Judged], *, target: float = TARGET, gates: Sequence[tuple[int, int]] = GATES) -> Choice:
    """Temperature first, then threshold and gate, all on the same validation episodes."""
    return choose(judged, temperature=fit_temperature(*_known(judged)), target=target, gates=gates)


def fit_temperature(labels: np.ndarray, logits: np.ndarray) -> float:
    """The temperature with the smallest negative log-likelihood, by Newton steps on its inverse, where it is convex.

    Where every frame is on its right side of 0, any smaller temperature looks better and the data say nothing: 1 stays.
    """
    values = np.asarray(logits, np.float64) * np.where(np.asarray(labels) == SUCCESS, 1.0, -1.0)
    if not len(values) or values.min() > 0:
        return 1.0
    low, high = 1 / TEMPERATURES[1], 1 / TEMPERATURES[0]
    inverse = 1.0
    for _ in range(100):
        wrong = sigmoid(-values * inverse)
        slope = -(values * wrong).mean()
        if slope < 0:
            low = max(low, inverse)
        else:
            high = min(high, inverse)
        curve = (values**2 * wrong * (1 - wrong)).mean()
        step = inverse - slope / curve if curve > 0 else np.nan
        # Newton where it stays between what is known to be too small and too large, else half-way.
        following = step if low < step < high else (low + high) / 2
        if abs(following - inverse) < 1e-10 * inverse:
            break
        inverse = following
    return float(1 / inverse)


def choose(
    judged: Sequence[Judged],
    *,
    temperature: float = 1.0,
    target: float = TARGET,
    gates: Sequence[tuple[int, int]] = GATES,
) -> Choice:
    """The gate and threshold that detect most successes while few enough failing episodes are paid; ties: the fastest.

    Of F failing episodes at most target·(F+1) - 1 may be paid: then a fresh one is paid with a probability of at most
    `target`, on average over such validation sets. With F below 1/target - 1 nothing can promise that; then none may be
    paid, and the choice is made by what thresholds around it do, too, so that it hangs on no single episode.
    """
    if not 0 < target < 1:
        raise RefereeError(f"the target episode false-positive rate is {target}: choose one between 0 and 1")
    winning = [each for each in judged if each.succeeds]
    failing = [each for each in judged if each.succeeds is False]
    if not winning:
        raise RefereeError(
            "no validation episode has a success frame, so no threshold can be chosen: label or record some"
        )
    if not all(each.whole for each in judged):
        gates = [(1, 1)]
    allowed = int(np.floor(target * (len(failing) + 1) + 1e-9)) - 1
    few = allowed < 0
    options = [_best(winning, failing, temperature, k, n, max(allowed, 0), few) for k, n in gates]
    met = [option for option in options if option.paid <= max(allowed, 0)]
    if met:
        chosen = min(met, key=lambda option: (-option.merit, -option.detected, option.delay, option.n, option.k))
    else:
        chosen = min(options, key=lambda option: (option.paid, -option.detected, option.delay))
    measured = _measured(chosen, judged, winning, failing, temperature, target, few, bool(met))
    last = choose_last(judged, temperature=temperature, target=target)
    return Choice(temperature, chosen.threshold, chosen.k, chosen.n, target, measured, last)


def choose_last(judged: Sequence[Judged], *, temperature: float, target: float) -> float | None:
    """The threshold for the last states alone, where no gate over time can help; a state that is no success fails.

    As few of them may be paid as in `choose`.
    """
    ends = [Judged(each.id, each.labels[-1:], each.logits[-1:]) for each in judged]
    winning = [each for each in ends if each.succeeds]
    failing = [each for each in ends if each.succeeds is False]
    if not winning:
        return None
    allowed = int(np.floor(target * (len(failing) + 1) + 1e-9)) - 1
    return _best(winning, failing, temperature, 1, 1, max(allowed, 0), allowed < 0).threshold


def fewest_mistakes(labels: np.ndarray, logits: np.ndarray, *, temperature: float) -> float:
    """The threshold at which fewest frames are judged wrongly, one way or the other; the middle of the best ones.

    For frames of the policy itself, which are few, but drawn as it goes through them: mistakes within BLUR of log-odds
    count in part, so that no single frame decides. labels: 0 or 1.
    """
    odds = np.asarray(logits, np.float64) / temperature
    half, count = round(BLUR / GRID), int(logit(np.array([SURE]))[0] / GRID)
    grid = np.arange(-count - half, count + half + 1) * GRID
    wins, fails = np.sort(odds[labels == SUCCESS]), np.sort(odds[labels == FAILURE])
    mistakes = np.searchsorted(wins, grid, "left") + len(fails) - np.searchsorted(fails, grid, "left")
    around = np.convolve(mistakes, np.full(2 * half + 1, 1 / (2 * half + 1)), "valid")
    best = np.flatnonzero(around < around.min() + 1e-9)
    return float(sigmoid(grid[half:-half][best[[len(best) // 2]]])[0])


@dataclass(frozen=True)
class _Option:
    k: int
    n: int
    threshold: float
    paid: int
    detected: int
    delay: float
    merit: float
    """What is made as large as it can be: episodes detected, or what is gained around a threshold from one half on."""


def _best(
    winning: Sequence[Judged], failing: Sequence[Judged], temperature: float, k: int, n: int, allowed: int, few: bool
) -> _Option:
    """The best threshold for one gate, exactly: everything changes only where an episode's first fire does."""
    check_gate(k, n)
    tops = np.sort([levels(each, temperature, k, n).max(initial=0.0) for each in failing] or [0.0])
    below, above, steps = _first_fires(winning, temperature, k, n)
    true = steps >= 0
    marks = np.unique(np.r_[above, tops, np.float32(1.0)])
    marks = marks[marks > 0]
    # A first fire stands for the thresholds in (below, above]: add it there, for all of them at once.
    start, stop = np.searchsorted(marks, below, "right"), np.searchsorted(marks, above, "right")
    detected = _spread(start[true], stop[true], np.ones(int(true.sum())), len(marks))
    waited = _spread(start[true], stop[true], steps[true], len(marks))
    delay = np.divide(waited, detected, out=np.full(len(marks), np.inf), where=detected > 0)
    paid = len(failing) - np.searchsorted(tops, marks, "left") if failing else np.zeros(len(marks), int)
    if few and (robust := _robust(marks, detected, paid, allowed)) is not None:
        threshold, merit = robust
        place = int(np.searchsorted(marks, np.float32(threshold)))
    else:
        candidates = np.flatnonzero(paid <= allowed)
        if not len(candidates):
            candidates = np.flatnonzero(paid == paid.min())
        most = candidates[detected[candidates] == detected[candidates].max()]
        fastest = most[delay[most] == delay[most].min()]
        place = int(fastest[-1])
        threshold = _between(marks[place - 1] if place else 0.0, marks[place])
        merit = -np.inf if few else float(detected[place])
    return _Option(k, n, threshold, int(paid[place]), int(detected[place]), float(delay[place]), merit)


def _robust(marks: np.ndarray, detected: np.ndarray, paid: np.ndarray, allowed: int) -> tuple[float, float] | None:
    """Of the thresholds from one half on, the one around which most is detected and least is paid, and how much.

    The mean over BLUR of log-odds on either side: a few episodes fix no threshold more finely than that. The middle of
    the best ones; None where nothing is detected.
    """
    half, count = round(BLUR / GRID), int(logit(np.array([SURE]))[0] / GRID)
    odds = np.arange(-half, count + half) * GRID
    around = np.searchsorted(marks, sigmoid(odds).astype(np.float32))  # the last mark is 1
    odds, places = odds[half:-half], around[half:-half]
    merit = np.convolve((detected - paid)[around], np.full(2 * half + 1, 1 / (2 * half + 1)), "valid")
    merit[(paid[places] > allowed) | (detected[places] == 0)] = -np.inf
    if not np.isfinite(merit.max()):
        return None
    best = np.flatnonzero(merit > merit.max() - 1e-9)
    return float(np.float32(sigmoid(odds[best[len(best) // 2]]))), float(merit.max())


def levels(judged: Judged, temperature: float, k: int, n: int) -> np.ndarray:
    """f32[S]: the highest threshold at which the gate fires in each state; 0 where a state is unlabelled.

    What the gate does in an unlabelled state is nobody's mistake and nobody's success: it is not counted.
    """
    found = gate_level(probability(judged.logits, temperature), k, n)
    return np.where((judged.labels == UNKNOWN) | np.isneginf(found), np.float32(0), found).astype(np.float32)


def _first_fires(
    winning: Sequence[Judged], temperature: float, k: int, n: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each (below, above] of thresholds for which an episode first fires at one state, and how many steps after its
    first success that is; before it, the fire is false."""
    below, above, steps = [], [], []
    for each in winning:
        found = levels(each, temperature, k, n)
        before = np.r_[np.float32(0), np.maximum.accumulate(found)[:-1]]
        places = np.flatnonzero(found > before)
        below.append(before[places])
        above.append(found[places])
        steps.append(places - each.first_success)
    return np.concatenate(below), np.concatenate(above), np.concatenate(steps)


def _spread(start: np.ndarray, stop: np.ndarray, values: np.ndarray, length: int) -> np.ndarray:
    """f64[length]: the sum of the values whose span [start, stop) holds each place."""
    steps = np.bincount(start, values, length + 1) - np.bincount(stop, values, length + 1)
    return np.cumsum(steps)[:length].round(9)


def _between(low: float, high: float) -> float:
    """A threshold in (low, high], half-way as logits go, so that rounding elsewhere cannot change what it decides."""
    for sure in (SURE, 1.0):
        ends = logit(np.clip([low, high], 1 - sure, sure))
        middle = np.float32(sigmoid(ends.mean()))
        if low < middle <= high:
            return float(middle)
    return float(high)


def _known(judged: Sequence[Judged]) -> tuple[np.ndarray, np.ndarray]:
    """Labels and logits of all labelled frames."""
    if not judged:
        raise RefereeError("there is no validation episode to calibrate on")
    labels = np.concatenate([each.labels for each in judged])
    logits = np.concatenate([each.logits for each in judged])
    return labels[labels != UNKNOWN], logits[labels != UNKNOWN]


def _measured(
    chosen: _Option,
    judged: Sequence[Judged],
    winning: Sequence[Judged],
    failing: Sequence[Judged],
    temperature: float,
    target: float,
    few: bool,
    met: bool,
) -> dict[str, Any]:
    labels, logits = _known(judged)
    area = auroc(labels, logits)
    sides = [sum(bool((each.labels == label).any()) for each in judged) for label in (SUCCESS, FAILURE)]
    low, high = auroc_interval(area, *sides)  # frames of an episode are alike: it counts as one
    expected = (chosen.paid + 1) / (len(failing) + 1)
    notes = []
    if not failing:
        notes.append("no validation episode fails: how often a failing episode would be paid is unknown")
    elif not met:
        notes.append(f"no threshold keeps to {target:.2%}: {chosen.paid} of {len(failing)} failing episodes are paid")
    elif few:
        notes.append(
            f"only {len(failing)} failing validation episodes: none is paid, but a fresh one may be with a probability "
            f"of about {expected:.1%}; {int(np.ceil(1 / target - 1e-9)) - 1} are needed to aim at {target:.2%}"
        )
    if not all(each.whole for each in judged):
        notes.append("the validation frames are samples of their episodes, so no gate over time could be chosen")
    return {
        "validation_episodes": len(judged),
        "failing_episodes": len(failing),
        "paid_failing_episodes": chosen.paid,
        "episode_fpr_upper": wilson(chosen.paid, len(failing))[1],
        "expected_episode_fpr": expected,
        "success_episodes": len(winning),
        "detected_episodes": chosen.detected,
        "mean_steps_to_detect": chosen.delay if chosen.detected else None,
        "auroc": _finite(area),
        "auroc_low": _finite(low),
        "auroc_high": _finite(high),
        "nll": nll(labels, logits, temperature),
        "nll_uncalibrated": nll(labels, logits),
        "notes": notes,
    }


def _finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if np.isfinite(value) else None
