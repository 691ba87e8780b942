"""The story of a demo on one page for newcomers: sentences, charts, pictures and films in one file."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from urllib.parse import quote

import numpy as np
from PIL import Image

from referee import files
from referee.audit import svg
from referee.audit.report import base64_of
from referee.audit.story import Arm, Card, Fooled, Stage, Story
from referee.audit.story_words import headline, number, points, title, whole
from referee.audit.words import percent
from referee.errors import RefereeError
from referee.metrics import Rate

SHOWN = 144
"""Pixels of a view on the page: three frames of two views fit beside each other."""
MOST_FILM = 4_000_000
"""Bytes of a film that are embedded at most."""


def write_story(path: Path, story: Story) -> None:
    """Draw the page; the whole file, or none of it."""
    folder = resources.files("referee.audit") / "template"
    text = Template((folder / "story.html").read_text()).substitute(
        style=(folder / "report.css").read_text(),
        task=escape(story.task),
        task_words=escape(story.task_words.rstrip(".")),
        title=escape(title(story)),
        headline=escape(headline(story)).replace(" %", "&nbsp;%"),
        examples="".join(_picture(image, escape(caption)) for caption, image in story.examples),
        stages=_stages(story.stages),
        total=_time(sum(stage.seconds for stage in story.stages)),
        arms=_arms(story.arms),
        fooled=_fooled(story.fooled, tricked=any(arm.fooled for arm in story.arms[:1])),
        cards=_cards(story.cards),
        evaluation=_evaluation(story.arms),
        cost=_cost(story),
        films=_films(story.arms),
        links=_links(story.links),
        facts="".join(
            f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in story.facts.items()
        ),
    )
    try:
        files.write_text(path, text)
    except OSError as error:
        raise RefereeError(f"cannot write {path} ({error.strerror})") from error


def _stages(stages: Sequence[Stage]) -> str:
    most = max((stage.seconds for stage in stages), default=0) or 1
    return "".join(
        f"<li><header><h3>{escape(stage.name)}</h3><span>{_time(stage.seconds)}</span></header>"
        f'<p>{escape(stage.words)}</p><i style="width:{max(0.4, 100 * stage.seconds / most):.1f}%"></i></li>'
        for stage in stages
    )


def _arms(arms: Sequence[Arm]) -> str:
    last = max((step for arm in arms for step in arm.steps), default=0)
    drawn = []
    for arm in arms:
        words = f"{arm.name}: true success and what the model said, over steps"
        chart = svg.lines(arm.steps, arm.true, arm.model, alarm=arm.alarm_at, swaps=arm.swaps, last=last, title=words)
        judged = f"{arm.end.trials} evaluation episodes: gap at the end {points(arm.gap)}"
        gap = "" if math.isnan(arm.gap) else f"<span>{judged}</span>"
        drawn.append(f"<figure><figcaption><b>{escape(arm.name)}</b>{gap}</figcaption>{chart}</figure>")
    return "".join(drawn)


def _fooled(fooled: Sequence[Fooled], *, tricked: bool) -> str:
    if not fooled:
        return ""
    pictures = []
    for each in fooled:
        tone, after = "bad" if each.still else "good", escape(whole(each.after))
        then = "" if math.isnan(each.after) else f' → after refinement <b class="{tone}">{after}</b>'
        words = f"said <b>{escape(whole(each.probability))}</b>{then}<small>step {number(each.step)}</small>"
        pictures.append(_picture(each.image, words))
    lead = f"{_no_success(len(fooled))}, whatever the frozen model said.{_still(fooled)}"
    name = "What fooled it" if tricked else "Where it was wrong all the same"
    return f'<h2>{name}</h2><p class="lead">{lead}</p><div class="frames">{"".join(pictures)}</div>'


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


def _cards(cards: Sequence[Card]) -> str:
    if not cards:
        return ""
    rows = [[escape(key), *(escape(card.rows.get(key, "–")) for card in cards)] for key in cards[0].rows]
    lead = '<p class="lead">An audit on frames which the policy itself went through.</p>'
    return f"<h2>Report card</h2>{lead}{_table([card.name for card in cards], rows)}"


def _evaluation(arms: Sequence[Arm]) -> str:
    rows = [
        ["true success before", *(_rate(arm.start) for arm in arms)],
        ["true success after", *(_rate(arm.end) for arm in arms)],
        ["the model said after", *("–" if math.isnan(arm.end_model) else percent(arm.end_model) for arm in arms)],
        ["gap", *(f"<b>{points(arm.gap, 1)}</b>" for arm in arms)],
        ["labels", *(number(arm.labels) for arm in arms)],
        ["minutes", *(f"{arm.minutes:.1f}" for arm in arms)],
    ]
    return _table([arm.name for arm in arms], rows)


def _cost(story: Story) -> str:
    tiles = [("Labels", number(story.labels), "asked of a person")]
    tiles.append(("A person's time", f"{story.label_minutes:.1f} min", f"at {story.seconds_per_label:g} s per label"))
    tiles.append(("The robot's time", f"{story.robot_minutes:.0f} min", "of moving, by its own clock"))
    if len(story.arms) > 1:
        first, last = story.arms[0], story.arms[-1]
        labels = last.labels - first.labels
        gain = (last.end.share - first.end.share) / labels * 100 if labels > 0 else math.nan
        tiles.append(("Gained per 100 labels", points(gain, 1), "of true success, against the frozen model"))
    return "".join(
        f'<div class="tile"><h3>{name}</h3><p class="value">{value}</p><p class="hint">{hint}</p></div>'
        for name, value, hint in tiles
    )


def _films(arms: Sequence[Arm]) -> str:
    films = "".join(_film(escape(arm.name), arm.film) for arm in arms if arm.film is not None)
    return f'<h2>Films</h2><div class="films">{films}</div>' if films else ""


def _film(name: str, path: Path) -> str:
    """The GIF as it is, or a sentence on why it is not shown."""
    try:
        data = path.read_bytes()
    except OSError:
        return f"<p>The film of “{name}” is not there.</p>"
    if len(data) > MOST_FILM:
        return f"<p>The film of “{name}” is too large to be shown here ({len(data) / 1e6:.1f} MB).</p>"
    return f'<figure><img src="data:image/gif;base64,{base64_of(data)}" alt=""><figcaption>{name}</figcaption></figure>'


def _links(links: Mapping[str, str]) -> str:
    items = "".join(f'<li><a href="{escape(quote(path))}">{escape(name)}</a></li>' for name, path in links.items())
    return f'<h2>Look further</h2><ul class="links">{items}</ul>' if items else ""


def _picture(views: np.ndarray, caption: str) -> str:
    """The views side by side, with a caption of HTML."""
    data = io.BytesIO()
    Image.fromarray(np.concatenate(list(views), axis=1)).save(data, "PNG", optimize=True)
    size = f'width="{SHOWN * len(views)}" height="{round(SHOWN * views.shape[1] / views.shape[2])}"'
    picture = f'<img class="pixels" src="data:image/png;base64,{base64_of(data.getvalue())}" {size} alt="">'
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Measures down, what is compared across; the rows are HTML."""
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", *names))
    body = "".join(f"<tr><th>{row[0]}</th>{''.join(f'<td>{cell}</td>' for cell in row[1:])}</tr>" for row in rows)
    return f'<table class="compared"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _rate(rate: Rate) -> str:
    if not rate.trials:
        return "–"
    low, high = rate.interval
    return f"{percent(rate.share)} <small>[{100 * low:.1f}, {100 * high:.1f}] of {rate.trials}</small>"


def _time(seconds: float) -> str:
    whole = round(seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"
