"""What a reward model is worth on episodes that it has not seen: every number with its interval."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from referee import files
from referee.audit.judged import Judged, Scorer, cameras_of, judge, named, views
from referee.audit.statistics import BINS, Operating, Statistics
from referee.datasets.fingerprint import Fingerprint, of_artifact
from referee.datasets.source import left_out
from referee.episodes import Episode, EpisodeStore
from referee.episodes.health import Health
from referee.errors import RefereeError
from referee.labels.log import SUCCESS, UNKNOWN, LabelLog
from referee.metrics.calibration import reliability
from referee.metrics.intervals import DRAWS, Estimate, episode_draws, percentile_interval
from referee.metrics.ranking import Curve, auroc, pr_curve, roc_curve
from referee.metrics.rates import wilson
from referee.models.doubt import doubt

TrainingEpisodes = Literal["refuse", "skip", "allow"]
KnownMatch = Literal["id", "equal", "val", "alike", ""]
POINTS = 200
"""Of a curve, as it is kept and drawn."""
_COUNTER = re.compile(r"\d{6}|\d{9}")


@dataclass(frozen=True, eq=False)
class Metrics:
    """All numbers of an audit, and what must be said beside them."""

    estimates: dict[str, Estimate]
    counts: dict[str, int]
    operating: dict[str, Any]
    cameras: dict[str, dict[str, Estimate]]
    """What happens without each camera: its AUROC, and how far it falls."""
    curves: dict[str, dict[str, list[float]]]
    notes: list[str] = field(default_factory=list)
    tainted: bool = False
    """Whether episodes of the training set were allowed in: then the numbers prove nothing."""

    def __getitem__(self, name: str) -> Estimate:
        return self.estimates[name]

    def to_json(self) -> dict[str, Any]:
        """Plain values; null where something could not be measured."""
        values = {
            "tainted_by_training_episodes": self.tainted,
            "counts": self.counts,
            "operating": self.operating,
            "estimates": {name: vars(each) for name, each in self.estimates.items()},
            "without_camera": {
                camera: {name: vars(each) for name, each in found.items()} for camera, found in self.cameras.items()
            },
            "notes": self.notes,
            "curves": self.curves,
        }
        return json.loads(json.dumps(values), parse_constant=lambda _: None)

    def save(self, path: Path) -> None:
        """metrics.json: the whole file, or none of it."""
        files.write_json(path, self.to_json())


def measure(
    judged: Sequence[Judged],
    operating: Operating,
    *,
    notes: Sequence[str] = (),
    tainted: bool = False,
    draws: int = DRAWS,
    seed: int = 0,
) -> Metrics:
    """Every number of judged episodes. Rates of episodes have Wilson's interval, all others one over drawn episodes."""
    found = Statistics(judged, operating)
    drawn = episode_draws(len(found.judged), draws=draws, seed=seed)
    point, spread = found.evaluate(np.ones((1, len(found.judged)))), found.evaluate(drawn)
    estimates = {
        name: Estimate(float(point[name][0]), *_interval(found, name, float(point[name][0]), spread[name]))
        for name in point
    }
    counts = _counts(found)
    said = [*notes]
    if not counts["failing_episodes"]:
        said.append("no audited episode fails: how often failing episodes are paid is not measured")
    if not estimates["auroc"].low > 0.5:
        said.append(f"on these episodes it cannot be told from chance: frame AUROC {estimates['auroc']}")
    if counts["unlabelled_states"]:
        said.append(f"{counts['unlabelled_states']} of {counts['states']} states are unlabelled and left out")
    return Metrics(
        estimates, counts, _operating(operating), _without(found, drawn, spread["auroc"]), _curves(found), said, tainted
    )


def audit(
    artifact: Scorer,
    source: EpisodeStore | Iterable[Episode],
    labels: LabelLog | None = None,
    *,
    training_episodes: TrainingEpisodes = "refuse",
    ablate: bool = True,
    draws: int = DRAWS,
    seed: int = 0,
) -> tuple[Metrics, list[Judged]]:
    """Judge episodes with an artifact, at its own calibration, and measure.

    source: read several times, so a store or a sequence, not an iterator.
    training_episodes: those that the model was trained on are an error, or left out; or let in for debugging, which
    marks the metrics as tainted.
    """
    if isinstance(source, Iterator):
        raise TypeError("an audit reads the episodes several times: give a store or a sequence")
    known = KnownEpisodes.of(artifact.provenance)
    matches = {each.meta.id: known.match(each, cameras_of(artifact)[0]) for each in named(source)}
    if not matches:
        raise RefereeError("there is no episode to audit")
    lost, health = left_out(source), Health()
    seen = {id for id, match in matches.items() if match in ("id", "equal")}
    refuse_seen(len(seen), len(matches), min(seen, default=""), training_episodes)
    skip = training_episodes == "skip"
    judged = judge(artifact, source, labels, ablate=ablate, skip=lambda id: skip and id in seen, see=health.look)
    return measure(
        judged,
        artifact.calibration,
        notes=[*_doubts(artifact), *_origins(matches, known, skip), *lost, *health.picture_warnings()],
        tainted=bool(seen) and not skip,
        draws=draws,
        seed=seed,
    ), judged


def trained_on(provenance: dict[str, Any], split: str = "train") -> frozenset[str]:
    """The ids of the episodes of a split, as the artifact's provenance says; numbers that anybody gives are no ids."""
    episodes = provenance.get("episodes")
    ids = episodes.get(split) or () if isinstance(episodes, dict) else ()
    return frozenset(str(id) for id in ids if not _COUNTER.fullmatch(str(id)))


@dataclass(frozen=True)
class KnownEpisodes:
    """What a model was trained and validated on, by ids and by content."""

    train: frozenset[str]
    val: frozenset[str]
    train_frames: Fingerprint | None
    """None in artifacts of older versions."""
    val_frames: Fingerprint | None

    @classmethod
    def of(cls, provenance: dict[str, Any]) -> KnownEpisodes:
        """As an artifact's provenance says."""
        train, val = (of_artifact(provenance, side) for side in ("train", "val"))
        return cls(trained_on(provenance), trained_on(provenance, "val"), train, val)

    def match(self, episode: Episode, camera: str) -> KnownMatch:
        """How an episode is known: by its id or its frames (`equal`), from validation, only alike, or not at all."""
        if episode.meta.id in self.train:
            return "id"
        if self.train_frames is None and self.val_frames is None:
            return "val" if episode.meta.id in self.val else ""
        images = views(episode, (camera,), slice(None))[:, 0]
        match = self.train_frames.match(images) if self.train_frames is not None else ""
        if match == "equal":
            return "equal"
        if episode.meta.id in self.val or (self.val_frames is not None and self.val_frames.holds(images)):
            return "val"
        return match


def refuse_seen(seen: int, count: int, example: str, what: TrainingEpisodes) -> None:
    """An error where episodes of the training are among those of an audit and nobody asked for it."""
    if seen and what == "refuse":
        raise RefereeError(
            f"the model was trained on {seen} of these {count} episodes (as {example}): audit it on others, "
            "or leave those out (--skip-training-episodes; in Python, training_episodes='skip')"
        )
    if seen == count and what == "skip":
        raise RefereeError(f"the model was trained on all {count} episodes: audit it on others")


def _origins(matches: Mapping[str, KnownMatch], known: KnownEpisodes, skip: bool) -> list[str]:
    """What must be said about where the episodes come from."""
    notes, count = [], Counter(matches.values())
    seen = count["id"] + count["equal"]
    if seen and skip:
        notes.append(f"{seen} episodes that the model was trained on are left out")
    elif seen:
        notes.append(f"the model was trained on {seen} of these {len(matches)} episodes: these numbers prove nothing")
    if count["val"]:
        notes.append(
            f"{count['val']} of the episodes chose the model, its temperature and its threshold: "
            "expect a little less elsewhere"
        )
    if count["alike"]:
        alike = next(id for id, match in matches.items() if match == "alike")
        notes.append(
            f"{count['alike']} of the episodes (as {alike}) look like episodes of the training: if they are re-encoded "
            "or resized copies, these numbers prove nothing"
        )
    if known.train_frames is None and any(_COUNTER.fullmatch(id) for id in matches):
        notes.append("these episodes have no ids of their own: whether the model was trained on them cannot be told")
    return notes


def _doubts(artifact: Scorer) -> list[str]:
    reason = doubt(getattr(artifact.calibration, "measured", {}), artifact.provenance)
    return [f"the model: {reason}"] if reason else []


def _interval(found: Statistics, name: str, value: float, samples: np.ndarray) -> tuple[float, float]:
    if name in ("episode_false_positive_rate", "episode_recall", "early_rate", "fire_precision"):
        above, below = found.rate(name)
        return wilson(above, below)
    if name in ("precision", "recall", "false_positive_rate") and value in (0.0, 1.0):
        # No draw of episodes can show what has not happened yet: count each episode as one trial.
        trials = found.trials(name)
        return wilson(round(value) * trials, trials)
    return percentile_interval(samples)


def _counts(found: Statistics) -> dict[str, int]:
    kinds = [each.kind for each in found.outcomes]
    states = sum(len(each.labels) for each in found.judged)
    return {
        "episodes": len(found.judged),
        "success_episodes": sum(each.succeeds is True for each in found.judged),
        "failing_episodes": sum(each.succeeds is False for each in found.judged),
        **{kind: kinds.count(kind) for kind in ("paid", "refused", "detected", "early", "missed")},
        "states": states,
        "success_states": int((found.labels == SUCCESS).sum()),
        "unlabelled_states": sum(int((each.labels == UNKNOWN).sum()) for each in found.judged),
    }


def _operating(operating: Operating) -> dict[str, Any]:
    names = ("temperature", "threshold", "gate_k", "gate_n", "target_episode_fpr")
    return {name: getattr(operating, name, None) for name in names}


def _without(found: Statistics, drawn: np.ndarray, whole: np.ndarray) -> dict[str, dict[str, Estimate]]:
    """AUROC without each camera, and the paired difference to AUROC with all of them."""
    result = {}
    value = auroc(found.labels, found.logits)
    for camera in found.judged[0].without:
        blind = Statistics(
            [Judged(each.id, each.labels, each.without[camera]) for each in found.judged], found.operating
        )
        without = blind.ranking(drawn)["auroc"]
        alone = auroc(blind.labels, blind.logits)
        result[camera] = {
            "auroc": Estimate(alone, *percentile_interval(without)),
            "auroc_loss": Estimate(value - alone, *percentile_interval(whole - without)),
        }
    return result


def _curves(found: Statistics) -> dict[str, dict[str, list[float]]]:
    lines = {
        "roc": roc_curve(found.labels, found.probability),
        "precision_recall": pr_curve(found.labels, found.probability),
    }
    curves = {name: _thin(line) for name, line in lines.items()}
    bins = reliability(found.labels, found.probability, BINS)
    curves["reliability"] = {
        "said": bins.said.tolist(), "true": bins.true.tolist(), "count": bins.count.tolist(),
    }  # fmt: skip
    return curves


def _thin(curve: Curve) -> dict[str, list[float]]:
    """A few hundred points, evenly along the way that the curve takes."""
    way = np.r_[0.0, np.cumsum(np.abs(np.diff(curve.x)) + np.abs(np.diff(curve.y)))]
    places = np.unique(np.searchsorted(way, np.linspace(0, way[-1], POINTS)).clip(0, len(way) - 1))
    places = np.union1d(places, [0, len(way) - 1])
    threshold = np.where(np.isinf(curve.threshold), math.nan, curve.threshold)
    return {
        "x": curve.x[places].round(6).tolist(),
        "y": curve.y[places].round(6).tolist(),
        "threshold": threshold[places].tolist(),
    }
