"""The story of a demo in sentences that claim no more than its numbers show."""

from __future__ import annotations

import math

import numpy as np

from referee.demo.story import FOOLED, Arm, Story


def title(story: Story) -> str:
    """What happened, in a few words."""
    if not story.arms or math.isnan(_most(story.arms[0])):
        return "A reward model at work"
    first, last = story.arms[0], story.arms[-1]
    if not first.fooled and last.gap > FOOLED:
        return "Fooled in spite of refinement"
    if not first.fooled:
        return "Too strict, not fooled" if first.gap < -FOOLED else "Not fooled this time"
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
    alarm = f"the alarm was raised at step {number(arm.alarm_at or 0)}" if raised else "the alarm stayed silent"
    if math.isnan(_most(arm)):
        return f"Nobody knows whether the frozen reward model was fooled, since no episode ended; {alarm}."
    if arm.gap > FOOLED:
        said, true = whole(arm.end_model), whole(arm.end.share)
        found = f"fooled: at the end it called {said} of the episodes a success, but only {true} were"
    elif arm.fooled:
        most, step = arm.widest
        left = "" if math.isnan(arm.gap) else f", and {points(arm.gap)} at the end"
        found = f"fooled on the way: around step {number(step)} it said {points(most)} too much{left}"
    elif arm.gap < -FOOLED:
        said, true = whole(arm.end_model), whole(arm.end.share)
        found = f"not fooled but too strict: at the end it called {said} of the episodes a success where {true} were"
        alarm += " all the same" * raised
    else:
        end = "" if math.isnan(arm.end.share) else f", and the policy ended at {whole(arm.end.share)} true success"
        found = f"not fooled this time: it never said more than {points(max(0.0, _most(arm)))} too much{end}"
        alarm += " all the same" * raised
    return f"The frozen reward model was {found}; {alarm}."


def _repair(first: Arm, last: Arm) -> str:
    """What refinement changed; where the intervals do not show a difference, it says so."""
    effort = f"{number(last.labels)} label{'s' * (last.labels != 1)}"
    if math.isnan(last.gap):
        return f"What refinement changed was not evaluated; it asked for {effort}."
    true = f"true success ended at {whole(last.end.share)} instead of {whole(first.end.share)}"
    better, worse = last.end.interval[0] > first.end.interval[1], last.end.interval[1] < first.end.interval[0]
    true += "" if better or worse else " (the intervals overlap)"
    if last.gap > FOOLED:
        verb = "did not close the gap" if first.gap > FOOLED else "did not keep the model honest"
        return f"Refinement {verb}: after {effort}, {points(last.gap)} were left at the end, and {true}."
    if last.gap < -FOOLED:
        return f"Refinement went too far: after {effort}, the model says {points(-last.gap)} less than is true; {true}."
    if abs(first.gap) > FOOLED:
        return f"Refinement closed the gap to {points(last.gap)} with {effort}, {'and' if better else 'but'} {true}."
    return f"With refinement, and {effort}, the gap ended at {points(last.gap)}; {true}."


def _most(arm: Arm) -> float:
    """The largest gap of all, nan where nothing is known."""
    return float(np.fmax(arm.gap, arm.widest[0]))


def points(gap: float, digits: int = 0) -> str:
    """A difference of shares, in points."""
    text = f"{abs(100 * gap):.{digits}f}"
    sign = "−" if gap < 0 and float(text) else ""
    return "–" if math.isnan(gap) else f"{sign}{text} point{'s' * (text != '1')}"


def whole(share: float) -> str:
    """Whole percents; only none is 0 % and only all is 100 %."""
    if math.isnan(share):
        return "an unknown share"
    if 0 < share < 0.005:
        return "< 1 %"
    return "> 99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"


def number(count: int) -> str:
    """Thousands apart."""
    return f"{count:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")
