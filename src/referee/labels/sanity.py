"""Loud warnings about labels that are probably wrong, before a model learns from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from referee.episodes.episode import PROGRESS, Episode
from referee.episodes.health import label_fault, named
from referee.labels.log import FAILURE, SUCCESS

FEW, MANY = 0.01, 0.9
"""Shares of success below and above which one should look again."""
FLIPS, FLIP_FRAMES = 3, 5
"""So many changes within so many frames are more than a robot does."""
STILL_STATE, STILL_IMAGE = 1e-3, 1.0
"""Largest change of a state, and mean change of an image (of 255), that is no motion yet."""


@dataclass(frozen=True)
class Summary:
    """What the warnings need to know about the labels of one episode."""

    id: str
    frames: int
    known: int
    successes: int
    flickers: bool
    success_at_rest: bool
    """A success before anything has moved, the reset state included."""
    inverted: bool | None
    """Success where there is less progress, or earlier, than failure; None where there is only one of them."""

    @classmethod
    def of(cls, episode: Episode, labels: np.ndarray) -> Summary:
        """Of an episode and its labels int8[T+1]; the images are read only where there are no states."""
        known = np.flatnonzero(labels >= 0)
        return cls(
            episode.meta.id,
            len(labels),
            len(known),
            int((labels == SUCCESS).sum()),
            _flickers(known, labels),
            _success_at_rest(episode, labels),
            _inverted(episode, labels),
        )


def warnings(summaries: Iterable[Summary]) -> list[str]:
    """One line for each suspicion, with the episodes that it is about; none means that nothing looks wrong."""
    found = list(summaries)
    frames, known = sum(each.frames for each in found), sum(each.known for each in found)
    lines = [_base_rate(sum(each.successes for each in found), known, frames)]
    flicker = [each.id for each in found if each.flickers]
    if flicker:
        lines.append(
            f"labels flip {FLIPS} times or more within {FLIP_FRAMES} frames in {named(flicker, len(found))}: "
            "hold success for some steps (success_hold_steps)"
        )
    rest = [each.id for each in found if each.success_at_rest]
    if rest:
        lines.append(f"success before anything has moved in {named(rest, len(found))}: is the label about that frame?")
    mixed = [each for each in found if each.inverted is not None]
    inverted = [each.id for each in mixed if each.inverted]
    if 2 * len(inverted) > len(mixed):
        lines.append(
            f"labels look inverted in {named(inverted, len(mixed))} with both: "
            "success comes with less progress, or earlier, than failure"
        )
    return [line for line in lines if line]


def check(pairs: Iterable[tuple[Episode, np.ndarray]]) -> list[str]:
    """The warnings about episodes and their labels."""
    return warnings(Summary.of(episode, labels) for episode, labels in pairs)


def _base_rate(successes: int, known: int, frames: int) -> str:
    if fault := label_fault(successes, known, frames):
        return fault
    share = f"{successes} of {known} labelled frames ({100 * successes / known:.1f} %) are a success"
    if successes < FEW * known:
        return f"only {share}: are the labels right?"
    if successes > MANY * known:
        return f"as many as {share}: are the labels right?"
    return ""


def _flickers(known: np.ndarray, labels: np.ndarray) -> bool:
    flips = known[1:][np.diff(labels[known]) != 0]
    # From the first of the flips to the last there are at most FLIP_FRAMES frames, both counted.
    return bool((flips[FLIPS - 1 :] - flips[: len(flips) - FLIPS + 1] < FLIP_FRAMES).any())


def _success_at_rest(episode: Episode, labels: np.ndarray) -> bool:
    successes = np.flatnonzero(labels == SUCCESS)
    if not len(successes):
        return False
    states, images = episode.observations.get("states"), episode.observations.get("main_images")
    first = int(successes[0])
    if states is not None:
        moved = np.abs(states[: first + 1] - states[0]).reshape(first + 1, -1).max(axis=1, initial=0) > STILL_STATE
        return not moved.any()
    if images is not None:
        start = images[0].astype(np.int16)
        return not any(np.abs(image - start).mean() > STILL_IMAGE for image in images[1 : first + 1])
    return first == 0


def _inverted(episode: Episode, labels: np.ndarray) -> bool | None:
    success, failure = labels == SUCCESS, labels == FAILURE
    if not success.any() or not failure.any():
        return None
    progress = episode.signals.get(PROGRESS)
    if progress is None or progress.ndim != 1 or not np.isfinite(progress).all():
        progress = np.arange(len(labels))
    return bool(progress[success].mean() < progress[failure].mean())
