"""The story of a demo, on one page for newcomers: a reward model is trained, fooled, caught and repaired, or not."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from referee.audit.words import percent
from referee.errors import RefereeError
from referee.metrics import Rate

FOOLED = 0.10
"""A model that says so much more than is true was fooled."""
SHOWN = 144
"""Pixels of a view on the page: three frames of two views fit beside each other."""
MOST_FILM = 4_000_000
"""Bytes of a film that are embedded at most."""


@dataclass(frozen=True)
class Stage:
    """One step of the way; words: one or two sentences on what happened, with numbers."""

    name: str
    seconds: float
    words: str


@dataclass(frozen=True, eq=False)
class Arm:
    """One training of the policy.

    true, model: true success of training episodes at each of `steps`, and what the model said of them; nan for none.
    swaps: steps at which a better model took over.
    start, end: true success of evaluation episodes before and after.
    end_model: the share of the latter that the model calls a success.
    labels: asked of a person.
    """

    name: str
    steps: Sequence[int]
    true: Sequence[float]
    model: Sequence[float]
    alarm_at: int | None
    swaps: Sequence[int]
    start: Rate
    end: Rate
    end_model: float
    labels: int
    minutes: float
    film: Path | None = None

    @property
    def gap(self) -> float:
        """How much more than the truth the model says at the end, as a share."""
        return self.end_model - self.end.share

    @property
    def widest(self) -> tuple[float, int]:
        """The largest gap on the way and its step: of three neighbours the median, so that no outlier decides."""
        found = [(m - t, s) for s, t, m in zip(self.steps, self.true, self.model, strict=True) if not math.isnan(m - t)]
        if len(found) > 2:
            found = [sorted(found[place : place + 3])[1] for place in range(len(found) - 2)]
        return max(found, default=(math.nan, 0))

    @property
    def fooled(self) -> bool:
        """Whether the model said far more than was true, at the end or on the way."""
        return self.gap > FOOLED or self.widest[0] > FOOLED


@dataclass(frozen=True, eq=False)
class Fooled:
    """A frame uint8[V,H,W,3] that fooled the frozen model; after: what the refined one says, nan for none."""

    image: np.ndarray
    probability: float
    after: float
    step: int


@dataclass(frozen=True, eq=False)
class Card:
    """A report card in short; all cards of a story share the keys."""

    name: str
    rows: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Story:
    """Everything that the page says.

    arms: the first has the frozen model; the last, if there are more, has refinement.
    examples: captions, and frames uint8[V,H,W,3].
    links: relative paths of more files by name.
    """

    task: str
    task_words: str
    stages: Sequence[Stage]
    arms: Sequence[Arm]
    fooled: Sequence[Fooled]
    cards: Sequence[Card]
    labels: int
    label_minutes: float
    seconds_per_label: float
    robot_minutes: float
    examples: Sequence[tuple[str, np.ndarray]]
    links: Mapping[str, str]
    facts: Mapping[str, str]


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
        fooled=_fooled(story.fooled),
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


def title(story: Story) -> str:
    """What happened, in a few words."""
    if not story.arms or math.isnan(_most(story.arms[0])):
        return "A reward model at work"
    first, last = story.arms[0], story.arms[-1]
    if not first.fooled:
        return "Fooled in spite of refinement" if last.gap > FOOLED else "Not fooled this time"
    caught = "not caught" if first.alarm_at is None else "caught"
    if first.gap <= FOOLED:
        return f"Fooled on the way, {caught}"
    if first is last:
        return f"Fooled, {caught}"
    repaired = "repaired" if last.end.interval[0] > first.end.interval[1] else "made honest"
    return f"Fooled, {caught}, {repaired if abs(last.gap) <= FOOLED else 'not repaired'}"


def headline(story: Story) -> str:
    """Two sentences that claim no more than the numbers show."""
    if not story.arms:
        return "No policy was trained, so nobody tried to fool the reward model."
    first, last = story.arms[0], story.arms[-1]
    return _trouble(first) if first is last else f"{_trouble(first)} {_repair(first, last)}"


def _trouble(arm: Arm) -> str:
    raised = arm.alarm_at is not None
    alarm = f"the alarm was raised at step {_number(arm.alarm_at or 0)}" if raised else "the alarm stayed silent"
    if math.isnan(_most(arm)):
        return f"Nobody knows whether the frozen reward model was fooled, since no episode ended; {alarm}."
    if arm.gap > FOOLED:
        said, true = _whole(arm.end_model), _whole(arm.end.share)
        found = f"fooled: at the end it called {said} of the episodes a success, but only {true} were"
    elif arm.fooled:
        most, step = arm.widest
        left = "" if math.isnan(arm.gap) else f", and {_points(arm.gap)} at the end"
        found = f"fooled on the way: around step {_number(step)} it said {_points(most)} too much{left}"
    else:
        end = "" if math.isnan(arm.end.share) else f", and the policy ended at {_whole(arm.end.share)} true success"
        found = f"not fooled this time: it never said more than {_points(max(0.0, _most(arm)))} too much{end}"
        alarm += " all the same" * raised
    return f"The frozen reward model was {found}; {alarm}."


def _repair(first: Arm, last: Arm) -> str:
    """What refinement changed; where the intervals do not show a difference, it says so."""
    effort = f"{_number(last.labels)} label{'s' * (last.labels != 1)}"
    if math.isnan(last.gap):
        return f"What refinement changed was not evaluated; it asked for {effort}."
    true = f"true success ended at {_whole(last.end.share)} instead of {_whole(first.end.share)}"
    better, worse = last.end.interval[0] > first.end.interval[1], last.end.interval[1] < first.end.interval[0]
    true += "" if better or worse else " (the intervals overlap)"
    if last.gap > FOOLED:
        verb = "did not close the gap" if first.gap > FOOLED else "did not keep the model honest"
        return f"Refinement {verb}: after {effort}, {_points(last.gap)} were left at the end, and {true}."
    if last.gap < -FOOLED:
        return (
            f"Refinement went too far: after {effort}, the model says {_points(-last.gap)} less than is true; {true}."
        )
    if first.gap > FOOLED:
        return f"Refinement closed the gap to {_points(last.gap)} with {effort}, {'and' if better else 'but'} {true}."
    return f"With refinement, and {effort}, the gap ended at {_points(last.gap)}; {true}."


def _most(arm: Arm) -> float:
    """The largest gap of all, nan where nothing is known."""
    return float(np.fmax(arm.gap, arm.widest[0]))


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
        gap = "" if math.isnan(arm.gap) else f"<span>gap at the end {_points(arm.gap)}</span>"
        drawn.append(f"<figure><figcaption><b>{escape(arm.name)}</b>{gap}</figcaption>{chart}</figure>")
    return "".join(drawn)


def _fooled(fooled: Sequence[Fooled]) -> str:
    if not fooled:
        return ""
    pictures = []
    for each in fooled:
        tone, after = "bad" if each.after >= 0.5 else "good", escape(_whole(each.after))
        then = "" if math.isnan(each.after) else f' → after refinement <b class="{tone}">{after}</b>'
        words = f"said <b>{escape(_whole(each.probability))}</b>{then}<small>step {_number(each.step)}</small>"
        pictures.append(_picture(each.image, words))
    still, known = sum(each.after >= 0.5 for each in fooled), sum(not math.isnan(each.after) for each in fooled)
    then = f" The refined model still takes {still or 'none'} of these {known} for a success." if known else ""
    lead = f"None of these frames shows a success, whatever the frozen model said.{then}"
    return f'<h2>What fooled it</h2><p class="lead">{lead}</p><div class="frames">{"".join(pictures)}</div>'


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
        ["gap", *(f"<b>{_points(arm.gap, 1)}</b>" for arm in arms)],
        ["labels", *(_number(arm.labels) for arm in arms)],
        ["minutes", *(f"{arm.minutes:.1f}" for arm in arms)],
    ]
    return _table([arm.name for arm in arms], rows)


def _cost(story: Story) -> str:
    tiles = [("Labels", _number(story.labels), "asked of a person")]
    tiles.append(("A person's time", f"{story.label_minutes:.1f} min", f"at {story.seconds_per_label:g} s per label"))
    tiles.append(("The robot's time", f"{story.robot_minutes:.0f} min", "of moving, by its own clock"))
    if len(story.arms) > 1:
        first, last = story.arms[0], story.arms[-1]
        labels = last.labels - first.labels
        gain = (last.end.share - first.end.share) / labels * 100 if labels > 0 else math.nan
        tiles.append(("Gained per 100 labels", _points(gain, 1), "of true success, against the frozen model"))
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


def _points(gap: float, digits: int = 0) -> str:
    """A difference of shares, in points."""
    text = f"{abs(100 * gap):.{digits}f}"
    sign = "−" if gap < 0 and float(text) else ""
    return "–" if math.isnan(gap) else f"{sign}{text} point{'s' * (text != '1')}"


def _whole(share: float) -> str:
    """Whole percents; only none is 0 % and only all is 100 %."""
    if math.isnan(share):
        return "an unknown share"
    if 0 < share < 0.005:
        return "< 1 %"
    return "> 99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"


def _number(count: int) -> str:
    return f"{count:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def _time(seconds: float) -> str:
    whole = round(seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"
