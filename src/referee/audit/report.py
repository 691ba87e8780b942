"""The report card: one HTML file with everything in it, to be opened anywhere, without a network."""

from __future__ import annotations

import base64
import html
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from PIL import Image

from referee import files
from referee.audit import svg
from referee.audit.exhibits import Shown, WrongFrame, most_wrong, read_frames, worth_a_look
from referee.audit.judged import Judged, Scorer, cameras_of
from referee.audit.measure import Metrics
from referee.audit.statistics import Operating
from referee.audit.words import NAMES, happened, headline, likely, percent, plain, span, verdict
from referee.episodes import Episode, EpisodeStore
from referee.errors import RefereeError
from referee.labels.log import SUCCESS
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
    try:
        files.write_text(path, text)
    except OSError as error:
        raise RefereeError(f"cannot write {path} ({error.strerror})") from error


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
    folder = resources.files("referee.audit") / "template"
    tone, chip, promise = verdict(metrics)
    scores, taken = _scores(judged, operating)
    explorer_note = "" if taken == len(judged) else f"{taken} of the {len(judged)} episodes, taken evenly."
    return Template((folder / "report.html").read_text()).substitute(
        style=(folder / "report.css").read_text(),
        script=(folder / "report.js").read_text(),
        data=json.dumps(scores, separators=(",", ":")).replace("<", "\\u003c"),
        title=_escape(title),
        tone=tone,
        chip=chip,
        headline=headline(metrics),
        promise=promise,
        notes=_notes(metrics),
        tiles=_tiles(metrics),
        explorer_note=explorer_note,
        gates=_gates(operating),
        curves=_curves(metrics),
        cameras=_cameras(metrics),
        episodes="".join(_timeline(each, operating, pictures) for each in shown),
        wrong=_wrong(wrong, metrics, pictures),
        numbers=_numbers(metrics),
        facts="".join(f"<tr><th>{_escape(name)}</th><td>{_escape(value)}</td></tr>" for name, value in facts.items()),
    )


def _notes(metrics: Metrics) -> str:
    if not metrics.notes:
        return ""
    items = "".join(f"<li>{_escape(note)}</li>" for note in metrics.notes)
    return f'<ul class="notes{" loud" if metrics.tainted else ""}">{items}</ul>'


def _tiles(metrics: Metrics) -> str:
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
    return "".join(_tile(name, metrics[key], share, hint, key) for name, key, share, hint in tiles)


def _tile(name: str, found: Estimate, share: bool, hint: str, key: str) -> str:
    write = percent if share else plain
    value = "–" if math.isnan(found.value) else write(found.value)
    ends = "" if math.isnan(found.low) else f"{write(found.low)} – {write(found.high)}"
    bar = "" if key == "steps_to_detect" else svg.interval(found.low, found.value, found.high)
    return (
        f'<div class="tile"><h3>{name}</h3><p class="value">{value}</p>{bar}<p class="ends">{ends}</p>'
        f'<p class="hint">{_escape(hint)}</p></div>'
    )


def _gates(operating: Operating) -> str:
    """The choices of k and n, with the chosen ones selected."""
    most = max(5, operating.gate_n)

    def options(chosen: int) -> str:
        return "".join(f"<option{' selected' * (n == chosen)}>{n}</option>" for n in range(1, most + 1))

    return (
        f'<label>at least <select id="k">{options(operating.gate_k)}</select></label> '
        f'<label>of the last <select id="n">{options(operating.gate_n)}</select> states</label>'
    )


def _curves(metrics: Metrics) -> str:
    roc, pr, bins = (metrics.curves[name] for name in ("roc", "precision_recall", "reliability"))
    fpr, recall, precision = (metrics[name].value for name in ("false_positive_rate", "recall", "precision"))
    axes = ("false-positive rate of frames", "recall of frames")
    first = svg.curve(roc["x"], roc["y"], names=axes, at=(fpr, recall), base="diagonal")
    second = svg.curve(pr["x"], pr["y"], names=("recall of frames", "precision of frames"), at=(recall, precision))
    third = svg.reliability(bins["said"], bins["true"], [int(each) for each in bins["count"]])
    return "".join(
        f"<figure><figcaption><b>{name}</b> <span>{word} {plain(metrics[key].value)}</span></figcaption>"
        f"{drawing}</figure>"
        for name, word, key, drawing in (
            ("ROC", "area", "auroc", first),
            ("Precision and recall", "average", "average_precision", second),
            ("Reliability", "ECE", "ece", third),
        )
    )


def _cameras(metrics: Metrics) -> str:
    if not metrics.cameras:
        return ""
    rows = "".join(
        f"<tr><th>without {_escape(camera)}</th><td>{plain(found['auroc'].value)}</td>"
        f"<td>{span(found['auroc'])}</td><td>{plain(found['auroc_loss'].value)}</td>"
        f"<td>{span(found['auroc_loss'])}</td></tr>"
        for camera, found in metrics.cameras.items()
    )
    return (
        '<h2>Without a camera</h2><p class="lead">Its picture is replaced by what it shows on average. What is lost is '
        'what that camera alone can tell.</p><div class="wide"><table class="numbers"><thead><tr><th></th>'
        "<th>AUROC</th>"
        f"<th>95 %</th><th>lost</th><th>95 %</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _timeline(shown: Shown, operating: Operating, pictures: Mapping[tuple[str, int], np.ndarray]) -> str:
    judged, what = shown.judged, shown.outcome
    said = probability(judged.logits, operating.temperature)
    text = happened(what)
    drawing = svg.timeline(judged, said, what, operating.threshold)
    frames = [pictures[judged.id, frame][0] for frame in _strip_frames(judged)]
    strip = _image(np.concatenate([_small(each) for each in frames], axis=1))
    good = what.kind in ("detected", "refused")
    return (
        f'<article class="episode" data-id="{_escape(judged.id)}"><header><span class="tag">{shown.why}</span>'
        f'<b class="{"good" if good else "bad"}">{text}</b><code>{_escape(judged.id)}</code></header>'
        f'<div class="wide"><div class="film">{drawing}<img src="{strip}" alt="film strip of the episode"></div></div>'
        "</article>"
    )


def _wrong(wrong: Sequence[WrongFrame], metrics: Metrics, pictures: Mapping[tuple[str, int], np.ndarray]) -> str:
    if not wrong:
        return "<p>No frame is on the wrong side of the threshold.</p>"
    parts = []
    for label, name in ((0, "Called success, labelled failure"), (SUCCESS, "Called failure, labelled success")):
        cards = [_card(each, pictures[each.episode, each.frame]) for each in wrong if each.label == label]
        if cards:
            parts.append(f'<h3 class="side">{name}</h3><div class="cards">{"".join(cards)}</div>')
    return "".join(parts)


def _card(wrong: WrongFrame, views: np.ndarray) -> str:
    picture = _image(np.concatenate([_small(view) for view in views[:2]], axis=1))
    kind = "success" if wrong.label == SUCCESS else "failure"
    return (
        f'<figure class="card"><img src="{picture}" alt="" loading="lazy"><figcaption>'
        f"<b>{likely(wrong.probability)}</b> <span>labelled {kind}</span><code>{_escape(wrong.episode)}</code>"
        f"<span>frame {wrong.frame}</span></figcaption></figure>"
    )


def _numbers(metrics: Metrics) -> str:
    return "".join(
        f"<tr><th>{name}</th><td>{plain(metrics[key].value)}</td><td>{span(metrics[key])}</td></tr>"
        for key, name in NAMES.items()
    )


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
        "logits": base64_of(small.tobytes()),
        "labels": base64_of(labels.tobytes()),
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


def _image(image: np.ndarray) -> str:
    data = io.BytesIO()
    Image.fromarray(image).save(data, "JPEG", quality=86, subsampling=0, optimize=True)
    return f"data:image/jpeg;base64,{base64_of(data.getvalue())}"


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _escape(text: str) -> str:
    return html.escape(text, quote=True)
