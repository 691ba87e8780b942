"""The report card: one HTML file with everything in it, to be opened anywhere, without a network."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from referee.audit import pages, svg
from referee.audit.exhibits import Shown, WrongFrame, most_wrong, read_frames, worth_a_look
from referee.audit.judged import Judged, Scorer, cameras_of
from referee.audit.measure import Metrics
from referee.audit.statistics import Operating
from referee.audit.words import NAMES, happened, headline, percent, plain, verdict
from referee.episodes import Episode, EpisodeStore
from referee.errors import RefereeError
from referee.labels.log import FAILURE, SUCCESS
from referee.metrics.calibration import logit, probability
from referee.metrics.intervals import Estimate

THUMBNAIL = 96
"""Pixels of a picture's longer side; smaller ones are kept as they are."""
STRIP = 12
"""Pictures beneath a timeline."""
EMBEDDED_STATES = 150_000
"""For the threshold explorer; of more episodes, some are taken evenly."""


def earlier(folder: Path) -> str:
    """What an audit into a folder replaces, in words; empty where there is nothing. A file of others is refused."""
    card, numbers = folder / "report.html", folder / "metrics.json"
    if not card.exists() and not numbers.exists():
        return ""
    try:
        values = json.loads(numbers.read_text())
        return f"an audit of {int(values['counts']['episodes'])} episodes"
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RefereeError(
            f"{card if card.exists() else numbers} is there already, and no audit wrote it: choose another --out"
        ) from error


def write_report(
    path: Path,
    metrics: Metrics,
    judged: Sequence[Judged],
    artifact: Scorer,
    source: EpisodeStore | Iterable[Episode],
    *,
    title: str = "Reward model",
    facts: Mapping[str, str] | None = None,
) -> None:
    """Draw the report card of an audit; the whole file, or none of it.

    source: where the judged episodes are; the few frames that are shown are read from there.
    facts: more lines for the table at its end.
    """
    operating, cameras = artifact.calibration, cameras_of(artifact)
    wrong, shown = most_wrong(judged, operating), worth_a_look(judged, operating)
    wanted: dict[str, list[int]] = {}
    for each in wrong:
        wanted.setdefault(each.episode, []).append(each.frame)
    for exhibit in shown:
        wanted.setdefault(exhibit.judged.id, []).extend(_strip_frames(exhibit.judged))
    pictures = read_frames(source, cameras, wanted)
    text = render(metrics, judged, operating, wrong, shown, pictures, title=title, facts=_facts(artifact, facts or {}))
    pages.write(path, text)


def render(
    metrics: Metrics,
    judged: Sequence[Judged],
    operating: Operating,
    wrong: Sequence[WrongFrame],
    shown: Sequence[Shown],
    pictures: Mapping[tuple[str, int], np.ndarray],
    *,
    title: str,
    facts: Mapping[str, str],
) -> str:
    """The HTML of a report card."""
    tone, chip, promise = verdict(metrics)
    scores, taken = _scores(judged, operating)
    return pages.render(
        "report.html",
        title=title,
        metrics=metrics,
        operating=operating,
        names=NAMES,
        tone=tone,
        chip=chip,
        headline=headline(metrics),
        promise=promise,
        tiles=_tiles(metrics),
        explorer_note="" if taken == len(judged) else f"{taken} of the {len(judged)} episodes, taken evenly.",
        curves=_curves(metrics),
        episodes=[_episode(each, operating, pictures) for each in shown],
        wrong=_wrong(wrong, pictures),
        facts=facts,
        scores=scores,
    )


def _tiles(metrics: Metrics) -> list[dict[str, str]]:
    counts = metrics.counts
    frames = counts["states"] - counts["unlabelled_states"]
    tiles = [
        ("Failing episodes paid", "episode_false_positive_rate", True, "the gate fires, but nothing succeeds"),
        ("Successes detected", "episode_recall", True, f"{counts['missed']} missed, {counts['early']} fired too early"),
        ("Steps to detect", "steps_to_detect", False, "median, from the first success state to the gate"),
        ("Frame AUROC", "auroc", False, "how often a success frame scores above a failure frame"),
        ("Average precision", "average_precision", False, f"{counts['success_states']} of {frames} frames are success"),
        ("Calibration error", "ece", False, f"ECE, 0 is best; Brier score {plain(metrics['brier'].value)}"),
    ]
    return [_tile(name, metrics[key], share, hint, key) for name, key, share, hint in tiles]


def _tile(name: str, found: Estimate, share: bool, hint: str, key: str) -> dict[str, str]:
    write = percent if share else plain
    return {
        "name": name,
        "value": "–" if math.isnan(found.value) else write(found.value),
        "bar": "" if key == "steps_to_detect" else svg.interval(found.low, found.value, found.high),
        "ends": "" if math.isnan(found.low) else f"{write(found.low)} – {write(found.high)}",
        "hint": hint,
    }


def _curves(metrics: Metrics) -> list[dict[str, str]]:
    roc, pr, bins = (metrics.curves[name] for name in ("roc", "precision_recall", "reliability"))
    fpr, recall, precision = (metrics[name].value for name in ("false_positive_rate", "recall", "precision"))
    axes = ("false-positive rate of frames", "recall of frames")
    first = svg.curve(roc["x"], roc["y"], names=axes, at=(fpr, recall), base="diagonal")
    second = svg.curve(pr["x"], pr["y"], names=("recall of frames", "precision of frames"), at=(recall, precision))
    third = svg.reliability(bins["said"], bins["true"], [int(each) for each in bins["count"]])
    return [
        {"name": name, "value": f"{word} {plain(metrics[key].value)}", "drawing": drawing}
        for name, word, key, drawing in (
            ("ROC", "area", "auroc", first),
            ("Precision and recall", "average", "average_precision", second),
            ("Reliability", "ECE", "ece", third),
        )
    ]


def _episode(shown: Shown, operating: Operating, pictures: Mapping[tuple[str, int], np.ndarray]) -> dict[str, str]:
    judged, what = shown.judged, shown.outcome
    probabilities = probability(judged.logits, operating.temperature)
    frames = [pictures[judged.id, frame][0] for frame in _strip_frames(judged)]
    return {
        "id": judged.id,
        "why": shown.why,
        "tone": "good" if what.kind in ("detected", "refused") else "bad",
        "happened": happened(what),
        "timeline": svg.timeline(judged, probabilities, what, operating.threshold),
        "strip": _side_by_side(frames),
    }


def _wrong(wrong: Sequence[WrongFrame], pictures: Mapping[tuple[str, int], np.ndarray]) -> list[dict[str, Any]]:
    """The two ways to be wrong, each with its frames; a way that never happened is left out."""
    sides = []
    for label, kind, name in (
        (FAILURE, "failure", "Called success, labelled failure"),
        (SUCCESS, "success", "Called failure, labelled success"),
    ):
        cards = [
            {**vars(each), "picture": _side_by_side(pictures[each.episode, each.frame][:2])}
            for each in wrong
            if each.label == label
        ]
        if cards:
            sides.append({"name": name, "label": kind, "cards": cards})
    return sides


def _facts(artifact: Scorer, more: Mapping[str, str]) -> dict[str, str]:
    """What the model is, for the table at the end."""
    spec, calibration = artifact.model.spec, artifact.calibration
    found: dict[str, Any] = {name: getattr(spec, name, None) for name in ("model_type", "arch", "image_size")}
    found["cameras"] = ", ".join(cameras_of(artifact))
    found["temperature"] = f"{calibration.temperature:.3f}"
    found["threshold"] = f"{calibration.threshold:.4f}"
    found["gate"] = f"{calibration.gate_k} of {calibration.gate_n}"
    if target := getattr(calibration, "target_episode_fpr", None):
        found["chosen for"] = f"episode false-positive rate of {percent(target)}"
    found |= {name: value for name, value in artifact.provenance.items() if isinstance(value, str | int | float)}
    facts = {name.replace("_", " "): str(value) for name, value in found.items() if value is not None}
    return {**facts, **more}


def _scores(judged: Sequence[Judged], operating: Operating) -> tuple[dict[str, Any], int]:
    """Calibrated logits in thousandths and labels, as bytes, for the threshold explorer; and of how many episodes."""
    states = sum(len(each.labels) for each in judged)
    step = -(-states // EMBEDDED_STATES)
    taken = list(judged[::step])
    logits = np.concatenate([each.logits for each in taken]).astype(np.float64) / operating.temperature
    small = np.clip(np.round(logits * 1000), -32000, 32000).astype("<i2")
    labels = np.concatenate([each.labels for each in taken])
    return {
        "ids": [each.id for each in taken],
        "sizes": [len(each.labels) for each in taken],
        "logits": pages.base64_of(small.tobytes()),
        "labels": pages.base64_of(labels.tobytes()),
        "threshold": float(logit(operating.threshold)),
        "k": operating.gate_k,
        "n": operating.gate_n,
    }, len(taken)


def _strip_frames(judged: Judged) -> list[int]:
    """The states of a film strip, each from the middle of the stretch that it stands for."""
    count = len(judged.labels)
    return [judged.frame(int((place + 0.5) * count / STRIP)) for place in range(STRIP)]


def _small(image: np.ndarray) -> np.ndarray:
    longest = max(image.shape[:2])
    if longest <= THUMBNAIL:
        return image
    size = [max(1, round(side * THUMBNAIL / longest)) for side in image.shape[1::-1]]
    return np.asarray(Image.fromarray(image).resize((size[0], size[1]), Image.Resampling.LANCZOS))


def _side_by_side(images: Iterable[np.ndarray]) -> str:
    """Thumbnails beside each other, as one picture."""
    return pages.picture(np.concatenate([_small(each) for each in images], axis=1), "JPEG", quality=86, subsampling=0)
