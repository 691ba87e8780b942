"""What an audit found, in words: a verdict that people can act on, and numbers with the digits that they are worth."""

from __future__ import annotations

import math

from referee.audit.calibrate import TARGET
from referee.audit.measure import Metrics
from referee.audit.statistics import Outcome
from referee.metrics.intervals import Estimate

NAMES = {
    "auroc": "frame AUROC",
    "average_precision": "average precision",
    "precision": "frame precision at the threshold",
    "recall": "frame recall at the threshold",
    "false_positive_rate": "frame false-positive rate at the threshold",
    "episode_false_positive_rate": "episode false-positive rate",
    "episode_recall": "episode recall",
    "early_rate": "successes fired at too early",
    "fire_precision": "precision of the gate",
    "steps_to_detect": "steps to detect, median",
    "steps_to_detect_90": "steps to detect, nine of ten",
    "ece": "ECE, bins of equal width",
    "ece_equal_mass": "ECE, bins of equal mass",
    "brier": "Brier score",
    "voc_success": "VOC on successes",
    "voc_failure": "VOC on failures",
}

_HAPPENED = {
    "paid": "paid although it fails",
    "refused": "fails, not paid",
    "detected": "detected",
    "early": "fired before the success",
    "missed": "missed",
}


def headline(metrics: Metrics) -> str:
    """What a user wants to know, in one sentence."""
    counts = metrics.counts
    found = f"detects {counts['detected']} of {counts['success_episodes']} successes"
    if not counts["failing_episodes"]:
        return f"{found.capitalize()}. No failing episode was there to be tempted by."
    return f"Pays {counts['paid']} of {counts['failing_episodes']} failing episodes and {found}."


def verdict(metrics: Metrics) -> tuple[str, str, str]:
    """(tone, word, sentences): whether the promised episode false-positive rate is kept, and how sure that is."""
    rate, recall = metrics["episode_false_positive_rate"], metrics["episode_recall"]
    target = metrics.operating.get("target_episode_fpr") or TARGET
    goal = f"{100 * target:g} %"
    seen = speed(metrics)
    if metrics.tainted:
        return "bad", "proves nothing", f"The model was trained on some of these episodes. {seen}"
    if math.isnan(rate.value):
        return "open", "not measured", f"Without failing episodes nobody knows how often one would be paid. {seen}"
    most = f"The true rate may be as high as {percent(rate.high)}"
    if rate.high <= target:
        found = ("good", "holds", f"At most {goal} of failing episodes may be paid, and that holds: {most.lower()}.")
    elif rate.low > target:
        low = percent(rate.low)
        found = ("bad", "too many", f"At most {goal} of failing episodes should be paid, but it is at least {low}.")
    else:
        count = metrics.counts["failing_episodes"]
        found = (
            "open",
            "not proven",
            f"At most {goal} of failing episodes should be paid. {most}: {count} failing episodes cannot tell.",
        )
    tone, word, promise = found
    if tone != "bad" and recall.value < 0.5:
        tone, word = "bad", "misses most"
    elif tone == "good" and recall.value < 0.9:
        tone, word = "open", "misses some"
    return tone, word, f"{promise} {seen}"


def speed(metrics: Metrics) -> str:
    """How soon a success is seen."""
    median, slow = metrics["steps_to_detect"].value, metrics["steps_to_detect_90"].value
    if math.isnan(median):
        return "No success is detected."
    if slow == 0:
        return "What it detects, it detects at the first state that shows it."
    when = "at once" if median == 0 else f"{median:g} step{'s' * (median != 1)} after it happens"
    return f"It sees a success {when} in the median, within {slow:g} step{'s' * (slow != 1)} in nine of ten."


def happened(what: Outcome) -> str:
    """What the gate did with an episode."""
    text = _HAPPENED[what.kind]
    if what.kind == "detected":
        text += " at once" if not what.steps else f" after {what.steps} step{'s' * (what.steps != 1)}"
    return text


def percent(share: float) -> str:
    """A share as people write it."""
    value = 100 * share
    return f"{value:.0f} %" if value in (0, 100) or value >= 99.95 else f"{value:.1f} %"


def plain(value: float) -> str:
    """Three digits, or four above 0.99; a dash for what is not known."""
    if math.isnan(value):
        return "–"
    return f"{value:g}" if value == int(value) else f"{value:.3f}" if value < 0.99 else f"{value:.4f}"


def likely(value: float) -> str:
    """A probability, with as many digits as tell it from 0 and 1."""
    for digits in (2, 3, 4):
        text = f"{value:.{digits}f}"
        if 0 < float(text) < 1:
            return text
    return "> 0.9999" if value > 0.5 else "< 0.0001"


def span(found: Estimate) -> str:
    """From where to where."""
    return "" if math.isnan(found.low) else f"{plain(found.low)} – {plain(found.high)}"
