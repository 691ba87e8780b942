"""The story of a demo on one page for newcomers: sentences, charts, pictures and films in one file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from markupsafe import Markup

from referee.audit import pages, svg
from referee.audit.words import percent
from referee.demo.story import Arm, Fooled, Story
from referee.demo.words import headline, number, points, title, whole
from referee.metrics import Rate

SHOWN = 144
"""Pixels of a view on the page: three frames of two views fit beside each other."""
MOST_FILM = 4_000_000
"""Bytes of a film that are embedded at most."""


def write_story(path: Path, story: Story) -> None:
    """Draw the page; the whole file, or none of it."""
    text = pages.render(
        "story.html",
        package="referee.demo",
        story=story,
        title=title(story),
        headline=headline(story),
        examples=[{"caption": caption, "picture": _picture(image)} for caption, image in story.examples],
        longest=max((stage.seconds for stage in story.stages), default=0) or 1,
        arms=_arms(story.arms),
        fooled=[_fooled(each) for each in story.fooled],
        fooled_lead=f"{_no_success(len(story.fooled))}, whatever the frozen model said.{_still(story.fooled)}",
        evaluation=_evaluation(story.arms),
        cost=_cost(story),
        films=[_film(arm.name, arm.film) for arm in story.arms if arm.film is not None],
        time=_time,
        quote=quote,
    )
    pages.write(path, text)


def _arms(arms: Sequence[Arm]) -> list[dict[str, str]]:
    last = max((step for arm in arms for step in arm.steps), default=0)
    drawn = []
    for arm in arms:
        words = f"{arm.name}: true success and what the model said, over steps"
        chart = svg.lines(arm.steps, arm.true, arm.model, alarm=arm.alarm_at, swaps=arm.swaps, last=last, title=words)
        gap = f"{arm.end.trials} evaluation episodes: gap at the end {points(arm.gap)}"
        drawn.append({"name": arm.name, "gap": "" if math.isnan(arm.gap) else gap, "chart": chart})
    return drawn


def _fooled(fooled: Fooled) -> dict[str, Any]:
    return {
        "picture": _picture(fooled.image),
        "probability": whole(fooled.probability),
        "after": "" if math.isnan(fooled.after) else whole(fooled.after),
        "tone": "bad" if fooled.still else "good",
        "step": number(fooled.step),
    }


def _no_success(count: int) -> str:
    return "This frame shows no success" if count == 1 else "None of these frames shows a success"


def _still(fooled: Sequence[Fooled]) -> str:
    """Whether the refined model makes the same mistakes."""
    still, known = sum(each.still for each in fooled), sum(not math.isnan(each.after) for each in fooled)
    if not known:
        return ""
    if len(fooled) == 1:
        return f" The refined model {'still takes it' if still else 'no longer takes it'} for one."
    return f" The refined model still takes {still or 'none'} of these {known} for a success."


def _evaluation(arms: Sequence[Arm]) -> list[dict[str, Any]]:
    rows: list[tuple[str, list[str]]] = [
        ("true success before", [_rate(arm.start) for arm in arms]),
        ("true success after", [_rate(arm.end) for arm in arms]),
        ("the model said after", ["–" if math.isnan(arm.end_model) else percent(arm.end_model) for arm in arms]),
        ("gap", [Markup("<b>{}</b>").format(points(arm.gap, 1)) for arm in arms]),
        ("labels", [number(arm.labels) for arm in arms]),
        ("minutes", [f"{arm.minutes:.1f}" for arm in arms]),
    ]
    return [{"name": name, "cells": cells} for name, cells in rows]


def _cost(story: Story) -> list[dict[str, str]]:
    tiles = [("Labels", number(story.labels), "asked of a person")]
    tiles.append(("A person's time", f"{story.label_minutes:.1f} min", f"at {story.seconds_per_label:g} s per label"))
    tiles.append(("The robot's time", f"{story.robot_minutes:.0f} min", "of moving, by its own clock"))
    if len(story.arms) > 1:
        first, last = story.arms[0], story.arms[-1]
        labels = last.labels - first.labels
        gain = (last.end.share - first.end.share) / labels * 100 if labels > 0 else math.nan
        tiles.append(("Gained per 100 labels", points(gain, 1), "of true success, against the frozen model"))
    return [{"name": name, "value": value, "hint": hint} for name, value, hint in tiles]


def _film(name: str, path: Path) -> dict[str, str]:
    """The GIF as it is, or the reason why it is not shown."""
    try:
        data = path.read_bytes()
    except OSError:
        return {"name": name, "address": "", "reason": "not there"}
    if len(data) > MOST_FILM:
        return {"name": name, "address": "", "reason": f"too large to be shown here ({len(data) / 1e6:.1f} MB)"}
    return {"name": name, "address": f"data:image/gif;base64,{pages.base64_of(data)}"}


def _picture(views: np.ndarray) -> dict[str, Any]:
    """The views side by side."""
    return {
        "address": pages.picture(np.concatenate(list(views), axis=1)),
        "width": SHOWN * len(views),
        "height": round(SHOWN * views.shape[1] / views.shape[2]),
    }


def _rate(rate: Rate) -> str:
    if not rate.trials:
        return "–"
    low, high = rate.interval
    interval = f"[{100 * low:.1f}, {100 * high:.1f}] of {rate.trials}"
    return Markup("{} <small>{}</small>").format(percent(rate.share), interval)


def _time(seconds: float) -> str:
    whole = round(seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"
