"""Drawings of a report card, as SVG text; colours are classes, so light and dark are the style sheet's business."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup, escape

from referee.audit.judged import Judged
from referee.audit.statistics import Outcome
from referee.labels.log import SUCCESS, UNKNOWN

SIZE = 300
LEFT, TOP, RIGHT, BOTTOM = 38, 12, 10, 36
TIMELINE = (720, 92)
LINES = (440, 290)
RELIABLE = ("share of success", "frames")


def curve(
    x: Sequence[float],
    y: Sequence[float],
    *,
    names: tuple[str, str],
    at: tuple[float, float] | None = None,
    base: str = "",
) -> Markup:
    """A line in the unit square, with a dot at the operating point; base: `diagonal` draws what chance gives."""
    parts = [_frame(names)]
    if base == "diagonal":
        parts.append(f'<line class="chance" x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}"/>')
    points = " ".join(f"{_x(a)},{_y(b)}" for a, b in zip(x, y, strict=True))
    parts.append(f'<polyline class="model" points="{points}"/>')
    if at is not None and not np.isnan(at).any():
        parts.append(f'<circle class="dot" cx="{_x(at[0])}" cy="{_y(at[1])}" r="4.5"/>')
    return _svg(SIZE, SIZE, "".join(parts), f"{names[1]} against {names[0]}")


def reliability(
    said: Sequence[float], true: Sequence[float], count: Sequence[int], *, words: tuple[str, str] = RELIABLE
) -> Markup:
    """Said against true, with dots as large as there are things behind them. words: what is true, and of what."""
    share, things = words
    parts = [_frame(("probability said", share))]
    parts.append(f'<line class="chance" x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}"/>')
    points = " ".join(f"{_x(a)},{_y(b)}" for a, b in zip(said, true, strict=True))
    parts.append(f'<polyline class="model thin" points="{points}"/>')
    most = max(count, default=1)
    for a, b, behind in zip(said, true, count, strict=True):
        size = 2.5 + 6.5 * np.log1p(behind) / np.log1p(most)
        parts.append(
            f'<circle class="dot soft" cx="{_x(a)}" cy="{_y(b)}" r="{size:.1f}"><title>said {a:.2f}, true {b:.2f}, '
            f"{behind} {things}</title></circle>"
        )
    return _svg(SIZE, SIZE, "".join(parts), f"{share} against the probability said")


def timeline(judged: Judged, probability: np.ndarray, what: Outcome, threshold: float) -> Markup:
    """The probability over the states of an episode: a band for success, the threshold, and where the gate fires."""
    width, height = TIMELINE
    top, band = 6, 8
    bottom = height - band - 6
    count = len(judged.labels)

    def x(place: float) -> str:
        return f"{width * place / count:.1f}"

    def y(value: float) -> str:
        return f"{bottom - (bottom - top) * value:.1f}"

    parts = []
    for start, stop, label in _stretches(judged.labels):
        wide = f"{width * (stop - start) / count:.1f}"
        kind = {SUCCESS: "success", UNKNOWN: "unknown"}.get(label, "failure")
        parts.append(f'<rect class="shade {kind}" x="{x(start)}" y="0" width="{wide}" height="{height - band - 2}"/>')
        parts.append(f'<rect class="band {kind}" x="{x(start)}" y="{height - band}" width="{wide}" height="{band}"/>')
    for value in (0, 1):
        parts.append(f'<line class="grid" x1="0" y1="{y(value)}" x2="{width}" y2="{y(value)}"/>')
    parts.append(f'<text class="tick" x="2" y="{y(0.84)}">1</text>')
    parts.append(f'<line class="limit" x1="0" y1="{y(threshold)}" x2="{width}" y2="{y(threshold)}"/>')
    points = " ".join(f"{x(place + 0.5)},{y(float(value))}" for place, value in enumerate(probability))
    parts.append(f'<polyline class="model" points="{points}"/>')
    kind = "good" if what.kind == "detected" else "bad"
    place = x(what.fire + 0.5) if what.fire >= 0 else "-9"
    parts.append(
        f'<g class="fire {kind}" transform="translate({place} 0)"><line y1="0" y2="{height - band - 2}"/>'
        '<path d="M-5 0h10l-5 8z"/></g>'
    )
    return _svg(width, height, "".join(parts), f"probability over the {count} states of episode {judged.id}")


def lines(
    steps: Sequence[int],
    true: Sequence[float],
    model: Sequence[float],
    *,
    alarm: int | None = None,
    swaps: Sequence[int] = (),
    last: int = 0,
    title: str = "",
) -> Markup:
    """True success and what the model said of it over steps, with the gap between them; nan is left out.

    alarm, swaps: steps at which it was raised, and at which another model took over.
    last: where the axis ends at least, so that several drawings share it.
    """
    width, height = LINES
    floor = height - BOTTOM - 8
    end = max([last, 1, *steps, *swaps, alarm or 0])

    def x(step: float) -> float:
        return round(LEFT + (width - LEFT - RIGHT) * step / end, 1)

    def y(share: float) -> float:
        return round(floor - (floor - 2 * TOP) * min(1.0, max(0.0, share)), 1)

    def points(*shares: Sequence[float]) -> list[list[tuple[float, float]]]:
        """Of each line, where none of them is nan."""
        whole = [place for place in range(len(steps)) if not np.isnan([each[place] for each in shares]).any()]
        return [[(x(steps[place]), y(each[place])) for place in whole] for each in shares]

    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y(share)}" x2="{width - RIGHT}" y2="{y(share)}"/>')
    for share in (0, 0.5, 1):
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y(share) + 4}" text-anchor="end">{100 * share:g} %</text>')
    for step, anchor in ((0, "start"), (end // 2, "middle"), (end, "end")):
        parts.append(f'<text class="tick" x="{x(step)}" y="{floor + 17}" text-anchor="{anchor}">{_count(step)}</text>')
    parts.append(f'<text class="axis" x="{x(end / 2)}" y="{height - 4}" text-anchor="middle">steps of training</text>')
    above, below = points(model, true)
    if len(above) > 1:
        parts.append(f'<polygon class="gap" points="{_joined(above + below[::-1])}"/>')
    for kind, shares in (("said", model), ("true", true)):
        line = points(shares)[0]
        parts.append(f'<polyline class="{kind}" points="{_joined(line)}"/>')
        parts += [f'<circle class="end {kind}" cx="{a}" cy="{b}" r="3.5"/>' for a, b in line[-1:]]
    for step in swaps:
        parts.append(
            f'<path class="swap" d="M{x(step)} {floor - 9}l4.5 9h-9z"><title>a better model took over at step '
            f"{_count(step)}</title></path>"
        )
    if alarm is not None:
        side, anchor = (-5, "end") if x(alarm) > width / 2 else (5, "start")
        parts.append(f'<line class="alarm" x1="{x(alarm)}" y1="4" x2="{x(alarm)}" y2="{floor}"/>')
        parts.append(
            f'<text class="alarm" x="{x(alarm) + side}" y="13" text-anchor="{anchor}">alarm at {_count(alarm)}</text>'
        )
    return _svg(width, height, "".join(parts), title)


def interval(low: float, value: float, high: float) -> Markup:
    """A number between 0 and 1 on a line, with its interval."""
    if np.isnan([low, value, high]).any():
        return Markup()
    a, v, b = (3 + 94 * min(1.0, max(0.0, each)) for each in (low, value, high))
    parts = (
        '<line class="grid" x1="0" y1="3" x2="100" y2="3"/>',
        f'<line class="span" x1="{a:.2f}" y1="3" x2="{b:.2f}" y2="3"/>',
        f'<circle class="dot" cx="{v:.2f}" cy="3" r="2.6"/>',
    )
    return Markup(f'<svg class="interval" viewBox="0 0 100 6" aria-hidden="true">{"".join(parts)}</svg>')


def _stretches(labels: np.ndarray) -> list[tuple[int, int, int]]:
    """(start, stop, label) of each run of equal labels."""
    ends = np.r_[np.flatnonzero(np.diff(labels)) + 1, len(labels)]
    starts = np.r_[0, ends[:-1]]
    return [(int(a), int(b), int(labels[a])) for a, b in zip(starts, ends, strict=True)]


def _frame(names: tuple[str, str]) -> str:
    parts = []
    for value in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<line class="grid" x1="{_x(0)}" y1="{_y(value)}" x2="{_x(1)}" y2="{_y(value)}"/>')
        parts.append(f'<line class="grid" x1="{_x(value)}" y1="{_y(0)}" x2="{_x(value)}" y2="{_y(1)}"/>')
    for value in (0, 0.5, 1):
        parts.append(f'<text class="tick" x="{_x(value)}" y="{_y(0) + 14}" text-anchor="middle">{value:g}</text>')
        parts.append(f'<text class="tick" x="{_x(0) - 6}" y="{_y(value) + 3.5}" text-anchor="end">{value:g}</text>')
    middle = _x(0.5)
    parts.append(f'<text class="axis" x="{middle}" y="{SIZE - 4}" text-anchor="middle">{names[0]}</text>')
    parts.append(
        f'<text class="axis" transform="translate(10 {_y(0.5)}) rotate(-90)" text-anchor="middle">{names[1]}</text>'
    )
    return "".join(parts)


def _joined(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{a},{b}" for a, b in points)


def _count(number: int) -> str:
    """Steps as an axis says them."""
    for size, unit in ((1_000_000, " M"), (1_000, " k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def _svg(width: int, height: int, content: str, title: str) -> Markup:
    """content: written here, of numbers and fixed words alone; what comes from elsewhere is in the title."""
    return Markup(f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">{content}</svg>')


def _x(value: float) -> float:
    return round(LEFT + (SIZE - LEFT - RIGHT) * value, 1)


def _y(value: float) -> float:
    return round(SIZE - BOTTOM - (SIZE - TOP - BOTTOM) * value, 1)
