"""The report card of a model that tells trends: one HTML file with everything in it."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

import numpy as np
from PIL import Image

from referee import files
from referee.audit import svg
from referee.audit.report import base64_of
from referee.audit.trend import TrendAudit, WrongWindow
from referee.audit.words import likely, percent, plain
from referee.datasets.windows import LABELS
from referee.errors import RefereeError
from referee.metrics.rates import Rate
from referee.models.vlm.prompts import Prompt
from referee.models.window import Window

GAP = 2
"""Pixels between the frames of a window."""


def write_trend_page(
    path: Path, found: TrendAudit, prompt: Prompt | None, *, title: str, facts: Mapping[str, str] | None = None
) -> None:
    """Draw the page of an audit; the whole file, or none of it.

    prompt: what is asked about one of the windows. facts: lines for the table at its end.
    """
    folder = resources.files("referee.audit") / "template"
    tone, chip, promise = verdict(found)
    text = Template((folder / "trend.html").read_text()).substitute(
        style=(folder / "report.css").read_text(),
        title=escape(title),
        tone=tone,
        chip=chip,
        headline=_together(headline(found)),
        promise=_together(promise),
        notes=_notes(found.notes),
        tiles=_tiles(found),
        matrix=_matrix(found),
        recalls=_recalls(found),
        reliability=_reliability(found),
        wrong=_wrong(found.wrong),
        prompt=_asked(prompt),
        written=_written(found.said),
        facts=_facts({**{name: str(count) for name, count in found.counts.items()}, **(facts or {})}),
    )
    try:
        files.write_text(path, text)
    except OSError as error:
        raise RefereeError(f"cannot write {path} ({error.strerror})") from error


# --- in words ---


def headline(found: TrendAudit) -> str:
    """What a user wants to know, in one sentence."""
    right = found.scores.confusion.accuracy
    told = found.scores.trend
    up = "" if math.isnan(told) else f", and tells up from down in {percent(told)}"
    return f"Names the trend of {percent(right.share)} of {right.trials:,} windows{up}."


def verdict(found: TrendAudit) -> tuple[str, str, str]:
    """(tone, word, sentences): whether it knows more than somebody who always says the same."""
    if found.notes:
        return "bad", "proves nothing", "The model was trained on some of these episodes."
    counts = found.scores.confusion.counts
    common = int(counts.sum(axis=1).argmax())
    constant = counts[common].sum() / counts.sum()
    low, high = found.scores.confusion.accuracy.interval
    base = f"Who always says {LABELS[common]} is right in {percent(float(constant))} of these windows"
    close = "Windows of one episode are alike, so the intervals are narrower than they should be."
    if low > constant:
        return "good", "knows something", f"{base}; this model is right in at least {percent(low)}. {close}"
    if high < constant:
        return "bad", "knows nothing", f"{base}; this model is right in at most {percent(high)}. {close}"
    return "open", "not proven", f"{base}, which lies within this model's interval. {close}"


def _together(text: str) -> str:
    """Numbers keep their sign."""
    return text.replace(" %", "&nbsp;%")


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<ul class="notes loud">{items}</ul>' if items else ""


# --- numbers ---


def _tiles(found: TrendAudit) -> str:
    scores = found.scores
    rates = [
        ("Three labels", scores.confusion.accuracy, "windows called by their own name"),
        ("Up seen as up", scores.up, "positive windows with P(positive) above P(negative)"),
        ("Down seen as down", scores.down, "negative windows with P(negative) above P(positive)"),
    ]
    numbers = [
        ("Calibration error", found.ece, "ECE of the likeliest label, 0 is best"),
        ("Order in time", found.voc, "VOC of the running sum of P(positive) − P(negative), in episodes that got ahead"),
        ("Follows the progress", found.following, "rank correlation of that sum with the true progress, all episodes"),
    ]
    return "".join(_rate_tile(*each) for each in rates) + "".join(
        f'<div class="tile"><h3>{name}</h3><p class="value">{plain(value)}</p><p class="hint">{escape(hint)}</p></div>'
        for name, value, hint in numbers
    )


def _rate_tile(name: str, rate: Rate, hint: str) -> str:
    value = percent(rate.share) if rate.trials else "–"
    low, high = rate.interval
    ends = f"{percent(low)} – {percent(high)}, of {rate.trials:,}" if rate.trials else "none there"
    bar = svg.interval(low, rate.share, high)
    return (
        f'<div class="tile"><h3>{name}</h3><p class="value">{value}</p>{bar}<p class="ends">{ends}</p>'
        f'<p class="hint">{escape(hint)}</p></div>'
    )


def _matrix(found: TrendAudit) -> str:
    """Truth down, words across; a cell is as dark as its share of the row."""
    counts = found.scores.confusion.counts[:, : len(LABELS)]
    head = "".join(f"<th>said {name}</th>" for name in LABELS)
    rows = []
    for i, name in enumerate(LABELS):
        total = max(1, int(counts[i].sum()))
        cells = "".join(
            f'<td class="{"right" if i == j else "wrong"}" style="--share:{count / total:.3f}">'
            f"{count:,}<small>{percent(count / total)}</small></td>"
            for j, count in enumerate(counts[i].tolist())
        )
        rows.append(f"<tr><th>truly {name}</th>{cells}</tr>")
    return f'<table class="matrix"><thead><tr><th></th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _recalls(found: TrendAudit) -> str:
    rows = []
    for name, rate in found.scores.confusion.recalls.items():
        low, high = rate.interval
        value, ends = (percent(rate.share), f"{percent(low)} – {percent(high)}") if rate.trials else ("–", "none there")
        bar = svg.interval(low, rate.share, high)
        rows.append(f"<tr><th>{name}</th><td>{bar}</td><td><b>{value}</b></td><td>{ends}</td></tr>")
    return f'<table class="recalls"><tbody>{"".join(rows)}</tbody></table>'


def _reliability(found: TrendAudit) -> str:
    bins = found.reliability
    drawing = svg.reliability(
        bins.said.tolist(), bins.true.tolist(), bins.count.tolist(), words=("share that is right", "windows")
    )
    return f"<figure><figcaption><b>Reliability</b> <span>ECE {plain(found.ece)}</span></figcaption>{drawing}</figure>"


def _written(said: Mapping[str, int]) -> str:
    total = sum(said.values())
    if not total:
        return ""
    words = ", ".join(f"{count} {name}" for name, count in said.items() if count)
    return f"<p>Of {total} windows it was also asked to write its answer: {words}.</p>"


def _facts(facts: Mapping[str, str]) -> str:
    return "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts.items())


# --- pictures ---


def _wrong(wrong: Sequence[WrongWindow]) -> str:
    if not wrong:
        return "<p>Every window is called by its own name.</p>"
    return "".join(_strip(each) for each in wrong)


def _strip(wrong: WrongWindow) -> str:
    case = wrong.case
    first, last = case.start, case.start + len(case.window) - 1
    return (
        f'<article class="episode window"><header><b class="bad">said {wrong.said}, {likely(wrong.probability)}</b>'
        f"<span>truly {case.label}, {likely(wrong.of_truth)}</span>"
        f"<span>progress {f'{case.change:+.2f}'.replace('-', '−')}</span></header>"
        f'<img class="pixels" src="{_image(_sheet(case.window))}" alt="frames {first} to {last}, a row per camera">'
        f"<code>{escape(case.episode)}, frames {first} to {last}</code></article>"
    )


def _sheet(window: Window) -> np.ndarray:
    """uint8[·,·,4]: the frames from left to right, a camera below the other, with gaps that let the page through."""
    films = []
    for images in window.frames.values():
        views = images[:, None] if images.ndim == 4 else images
        films += [views[:, number] for number in range(views.shape[1])]
    height, width = films[0].shape[1:3]
    sheet = np.zeros((len(films) * (height + GAP) - GAP, len(window) * (width + GAP) - GAP, 4), np.uint8)
    for row, film in enumerate(films):
        for column, frame in enumerate(film):
            top, left = row * (height + GAP), column * (width + GAP)
            place = sheet[top : top + height, left : left + width]
            place[..., :3] = frame if frame.shape == place[..., :3].shape else _resized(frame, width, height)
            place[..., 3] = 255
    return sheet


def _resized(image: np.ndarray, width: int, height: int) -> np.ndarray:
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.LANCZOS))


def _asked(prompt: Prompt | None) -> str:
    """The texts and pictures of a prompt in their order; the frames of a clip stand together."""
    if prompt is None:
        return ""
    parts = [f'<span class="system">{escape(prompt.system)}</span>'] if prompt.system else []
    for part in prompt.parts:
        if isinstance(part, str):
            parts.append(f"<span>{escape(part)}</span>")
            continue
        frames = list(part) if part.ndim == 4 else [part]
        images = "".join(f'<img class="pixels" src="{_image(frame)}" alt="a frame">' for frame in frames)
        parts.append(f'<span class="clip">{images}</span>' if part.ndim == 4 else images)
    return f'<div class="prompt">{"".join(parts)}</div>'


def _image(image: np.ndarray) -> str:
    data = io.BytesIO()
    Image.fromarray(image).save(data, "PNG", optimize=True)
    return f"data:image/png;base64,{base64_of(data.getvalue())}"
