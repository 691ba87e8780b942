"""What is wrong with recorded episodes: pictures that show nothing, labels that teach nothing. A few frames tell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from referee.episodes.episode import Episode

FRAMES = 4
"""Frames of an episode that are looked at."""
DARK, FLAT = 8, 4
"""A picture no brighter than `DARK` is black, one that spans no more than `FLAT` of 255 is of one colour."""
BLACK, PLAIN, STILL = "are black", "are of one colour", "do not change within an episode"
ADVICE = {
    BLACK: "check the camera, the light and the renderer, and record again",
    PLAIN: "check the camera and the renderer, and record again",
    STILL: "check that the camera is read after each step, and record again",
}
"""What to do about each fault of pictures."""


class Health:
    """Looks at episodes as they go by; `warnings` says how many of how many are faulty, and what to do.

    Of each episode only `FRAMES` pictures of each camera are read, so that it costs little in files of any size.
    """

    def __init__(self, *, sampled: bool = False) -> None:
        """sampled: these episodes are some of a larger number, and warnings say so."""
        self._what = "sampled episodes" if sampled else "episodes"
        self.episodes = self.frames = self.labelled = self.successes = 0
        self._faulty: dict[tuple[str, str], list[str]] = {}

    def look(self, episode: Episode, labels: np.ndarray | None = None) -> list[str]:
        """Take in an episode; returns the faults that no episode before it had.

        labels: int8[T+1], 1, 0 or -1 for unknown; None takes the recorded success.
        """
        if labels is None and episode.success is not None:
            labels = episode.success.astype(np.int8)
        name = episode.meta.id or f"number {self.episodes}"
        self.episodes += 1
        self.frames += episode.states_count
        if labels is not None:
            self.labelled += int((labels >= 0).sum())
            self.successes += int((labels == 1).sum())
        new = []
        for camera, fault in picture_faults(episode).items():
            if (camera, fault) not in self._faulty:
                new.append(f"pictures of {camera} {fault} in episode {name}: {ADVICE[fault]}")
            self._faulty.setdefault((camera, fault), []).append(name)
        return new

    def picture_warnings(self) -> list[str]:
        """One line for each camera and fault."""
        return [
            f"pictures of {camera} {fault} in {named(ids, self.episodes, self._what)}: {ADVICE[fault]}"
            for (camera, fault), ids in self._faulty.items()
        ]

    def label_warning(self) -> str:
        """See `label_fault`."""
        return label_fault(self.successes, self.labelled, self.frames)

    def warnings(self) -> list[str]:
        """One line for each fault; none if nothing looks wrong."""
        return [line for line in (*self.picture_warnings(), self.label_warning()) if line]


def label_fault(successes: int, labelled: int, frames: int) -> str:
    """Why a model cannot learn from so many labels; empty where it can."""
    if not labelled:
        return f"no frame has a label ({frames} frames): label them before you train on them"
    share = f"{successes} of {labelled} labelled frames ({100 * successes / labelled:.1f} %) are a success"
    if successes == 0:
        return f"{share}: a model cannot learn what success looks like; record or label some"
    if successes == labelled:
        return f"{share}: a model cannot learn what failure looks like; record or label some"
    return ""


def picture_faults(episode: Episode) -> dict[str, str]:
    """{camera: fault} of the pictures of an episode, by a few of its frames."""
    if not len(episode.observations.get("main_images", ())):
        return {}
    rows = np.unique(np.linspace(0, len(episode), FRAMES).round().astype(int))
    faults = {}
    for camera, frames in episode.views().items():
        sample = np.stack([frames[row] for row in rows])
        fault = blank_fault(sample) or (STILL if len(sample) > 1 and (sample == sample[0]).all() else "")
        if fault:
            faults[camera] = fault
    return faults


def blank_fault(pictures: np.ndarray) -> str:
    """What more than half of the pictures uint8[n,H,W,3] are: black, or of one colour; empty where they are neither."""
    flat = pictures.reshape(len(pictures), -1)
    brightest, darkest = flat.max(axis=1), flat.min(axis=1)
    for fault, blank in ((BLACK, brightest <= DARK), (PLAIN, brightest - darkest <= FLAT)):
        if 2 * int(blank.sum()) > len(flat):
            return fault
    return ""


def named(ids: Sequence[str], total: int, what: str = "episodes") -> str:
    """How many of how many episodes, and the ids of the first."""
    shown = ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
    return f"{len(ids)} of {total} {what} ({shown})"
