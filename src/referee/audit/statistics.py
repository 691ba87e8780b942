"""Every number of an audit as a function of how often each episode counts: so all of them get intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from referee.audit.judged import Judged
from referee.errors import RefereeError
from referee.labels.log import SUCCESS, UNKNOWN
from referee.metrics.calibration import bin_of, probability
from referee.metrics.gate import first, gate
from referee.metrics.intervals import by_episode, weighted_quantile
from referee.metrics.ranking import aurocs, average_precisions, voc

BINS = 15
Kind = Literal["paid", "refused", "detected", "early", "missed", "unlabelled"]


class Operating(Protocol):
    """How logits become decisions; an artifact's calibration, or a fresh `Choice`."""

    @property
    def temperature(self) -> float: ...
    @property
    def threshold(self) -> float: ...
    @property
    def gate_k(self) -> int: ...
    @property
    def gate_n(self) -> int: ...


@dataclass(frozen=True)
class Outcome:
    """What the gate makes of an episode, by its first fire: after it, a real run is over and has been paid."""

    kind: Kind
    """A failing episode is paid or refused; a success is detected, fired at too early, or missed."""
    fire: int
    """The state of the first fire; -1 for none."""
    steps: int
    """From the first success to the fire, where it is detected; else -1."""


def outcome(judged: Judged, operating: Operating) -> Outcome:
    """A success is detected when the gate first fires at its first success state or later; before that is early.

    What the gate does in unlabelled states is not counted.
    """
    if judged.succeeds is None:
        return Outcome("unlabelled", -1, -1)
    says = probability(judged.logits, operating.temperature) >= np.float32(operating.threshold)
    fires = gate(says, operating.gate_k, operating.gate_n) & (judged.labels != UNKNOWN)
    fire = int(first(fires))
    if not judged.succeeds:
        return Outcome("refused" if fire < 0 else "paid", fire, -1)
    if fire < 0:
        return Outcome("missed", fire, -1)
    steps = fire - judged.first_success
    return Outcome("detected", fire, steps) if steps >= 0 else Outcome("early", fire, -1)


class Statistics:
    """The numbers of one model on some episodes, at its operating point."""

    def __init__(self, judged: Sequence[Judged], operating: Operating) -> None:
        self.judged, self.operating = list(judged), operating
        if not self.judged:
            raise RefereeError("there is no episode to audit")
        sizes = [len(each.labels) for each in self.judged]
        labels = np.concatenate([each.labels for each in self.judged])
        logits = np.concatenate([each.logits for each in self.judged])
        known = labels != UNKNOWN
        self.episode = np.repeat(np.arange(len(sizes)), sizes)[known]
        """int[N]: the episode of each labelled frame."""
        self.labels, self.logits = labels[known], logits[known]
        for value, word in ((SUCCESS, "success"), (0, "failure")):
            if not (self.labels == value).any():
                raise RefereeError(
                    f"the audited data have no {word} frame: record or label some, both kinds are needed"
                )
        self.probability = probability(self.logits, operating.temperature)
        self.says = self.probability >= np.float32(operating.threshold)
        self.outcomes = [outcome(each, operating) for each in self.judged]
        self.voc = np.array([_voc(each) for each in self.judged])

    def evaluate(self, draws: np.ndarray) -> dict[str, np.ndarray]:
        """f64[B] for each number, with each episode counted as often as `draws` [B,E] says."""
        return {**self.ranking(draws), **self._frames(draws), **self._calibration(draws), **self._episodes(draws)}

    def rate(self, name: str) -> tuple[int, int]:
        """How many of how many: the counts behind a rate of frames or of episodes."""
        above, below = self._rates()[name] if name in self._rates() else self._episode_rates()[name]
        return int(above.sum()), int(below.sum())

    def trials(self, name: str) -> int:
        """The number of episodes that say something about a rate of frames."""
        return len(np.unique(self.episode[self._rates()[name][1]]))

    def ranking(self, draws: np.ndarray) -> dict[str, np.ndarray]:
        """How well frames are ordered, whatever the threshold."""
        return {
            "auroc": by_episode(lambda w: aurocs(self.labels, self.logits, w), draws, self.episode),
            "average_precision": by_episode(
                lambda w: average_precisions(self.labels, self.logits, w), draws, self.episode
            ),
        }

    def _rates(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Rates of frames, as (which count, of which)."""
        true = self.labels == SUCCESS
        return {
            "precision": (self.says & true, self.says),
            "recall": (self.says & true, true),
            "false_positive_rate": (self.says & ~true, ~true),
        }

    def _frames(self, draws: np.ndarray) -> dict[str, np.ndarray]:
        return {
            name: _ratio(draws, self._sum(above), self._sum(below)) for name, (above, below) in self._rates().items()
        }

    def _calibration(self, draws: np.ndarray) -> dict[str, np.ndarray]:
        error = (self.probability.astype(np.float64) - self.labels) ** 2
        frames = self._sum(np.ones(len(self.labels)))
        found = {"brier": _ratio(draws, self._sum(error), frames)}
        for name, equal in (("ece", "width"), ("ece_equal_mass", "mass")):
            which = bin_of(self.probability, BINS, equal="width" if equal == "width" else "mass")
            gaps = np.stack(
                [self._sum((which == each) * (self.probability - self.labels)) for each in range(BINS)], axis=1
            )
            found[name] = np.abs(draws @ gaps).sum(axis=1) / (draws @ frames)
        return found

    def _episode_rates(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        kinds = np.array([each.kind for each in self.outcomes])
        failing, winning = np.isin(kinds, ("paid", "refused")), np.isin(kinds, ("detected", "early", "missed"))
        fired = np.isin(kinds, ("paid", "detected", "early"))
        return {
            "episode_false_positive_rate": (kinds == "paid", failing),
            "episode_recall": (kinds == "detected", winning),
            "early_rate": (kinds == "early", winning),
            "fire_precision": (kinds == "detected", fired),
        }

    def _episodes(self, draws: np.ndarray) -> dict[str, np.ndarray]:
        found = {name: _ratio(draws, above, below) for name, (above, below) in self._episode_rates().items()}
        detected = np.array([each.kind == "detected" for each in self.outcomes])
        steps = np.array([each.steps for each in self.outcomes])
        found["steps_to_detect"] = weighted_quantile(steps[detected], draws[:, detected])
        found["steps_to_detect_90"] = weighted_quantile(steps[detected], draws[:, detected], 0.9)
        for name, which in (("voc_success", True), ("voc_failure", False)):
            chosen = np.array([each.succeeds is which for each in self.judged]) & ~np.isnan(self.voc)
            found[name] = _ratio(draws, np.where(chosen, self.voc, 0.0), chosen)
        return found

    def _sum(self, values: np.ndarray) -> np.ndarray:
        """f64[E]: the sum over the frames of each episode."""
        return np.bincount(self.episode, np.asarray(values, np.float64), len(self.judged))


def _voc(judged: Judged) -> float:
    """Up to the last success, where there is one: what comes after it need not go up."""
    wins = np.flatnonzero(judged.labels == SUCCESS)
    return voc(judged.logits[: wins[-1] + 1] if len(wins) else judged.logits)


def _ratio(draws: np.ndarray, above: np.ndarray, below: np.ndarray) -> np.ndarray:
    top, bottom = draws @ above.astype(np.float64), draws @ below.astype(np.float64)
    return np.divide(top, bottom, out=np.full(len(draws), np.nan), where=bottom > 0)
