"""The report card of a model that tells trends: one HTML file with everything in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from referee.audit import pages, svg
from referee.audit.trend import TrendAudit, WrongWindow
from referee.audit.words import percent, plain
from referee.datasets.windows import LABELS
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
    tone, chip, promise = verdict(found)
    bins = found.reliability
    text = pages.render(
        "trend.html",
        title=title,
        found=found,
        tone=tone,
        chip=chip,
        headline=headline(found),
        promise=promise,
        tiles=_tiles(found),
        matrix=_matrix(found),
        recalls=[{"name": name, **_rate(rate)} for name, rate in found.scores.confusion.recalls.items()],
        reliability=svg.reliability(
            bins.said.tolist(), bins.true.tolist(), bins.count.tolist(), words=("share that is right", "windows")
        ),
        wrong=[_strip(each) for each in found.wrong],
        prompt=prompt,
        picture=pages.picture,
        written=", ".join(f"{count} {name}" for name, count in found.said.items() if count),
        facts={**found.counts, **(facts or {})},
    )
    pages.write(path, text)


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


# --- numbers ---


def _tiles(found: TrendAudit) -> list[dict[str, str]]:
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
    tiles = []
    for name, rate, hint in rates:
        drawn = _rate(rate)
        count = f", of {rate.trials:,}" if rate.trials else ""
        tiles.append({**drawn, "name": name, "ends": drawn["ends"] + count, "hint": hint})
    return tiles + [{"name": name, "value": plain(value), "hint": hint} for name, value, hint in numbers]


def _rate(rate: Rate) -> dict[str, str]:
    """A share and its interval, in words and drawn."""
    low, high = rate.interval
    return {
        "value": percent(rate.share) if rate.trials else "–",
        "ends": f"{percent(low)} – {percent(high)}" if rate.trials else "none there",
        "bar": svg.interval(low, rate.share, high),
    }


def _matrix(found: TrendAudit) -> list[dict[str, Any]]:
    """Truth down, words across; a cell is as dark as its share of the row."""
    rows = []
    for name, counts in zip(LABELS, found.scores.confusion.counts[:, : len(LABELS)].tolist(), strict=True):
        total = max(1, sum(counts))
        cells = [
            {"name": other, "count": count, "share": count / total} for other, count in zip(LABELS, counts, strict=True)
        ]
        rows.append({"name": name, "cells": cells})
    return rows


# --- pictures ---


def _strip(wrong: WrongWindow) -> dict[str, Any]:
    case = wrong.case
    return {
        "said": wrong.said,
        "probability": wrong.probability,
        "of_truth": wrong.of_truth,
        "label": case.label,
        "change": case.change,
        "episode": case.episode,
        "first": case.start,
        "last": case.start + len(case.window) - 1,
        "picture": pages.picture(_sheet(case.window)),
    }


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
