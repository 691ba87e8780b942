"""Success out of what a file says step by step: rewards, or LeRobot's `next.success`; and which frame that labels.

A row of most files is a state and the step that left it. A reward or a success in it is the result of that step:

    next    the frame after the step: what the names say, and how robomimic computes its rewards
    same    the frame of the row itself: for files whose rows show the result of their step

With rows only and no state after the last, `next` has no frame for the last row; how often that was a success is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from referee.episodes.episode import Episode, EpisodeError
from referee.episodes.formats.frame_labels import with_success

Frame = Literal["same", "next"]
FRAMES: tuple[Frame, ...] = ("same", "next")
NEXT_SUCCESS, NEXT_REWARD, ROW_REWARDS = "next.success", "next.reward", "row_rewards"
"""Signals in which readers keep such rows whole, the last one too."""
_REWARD = re.compile(r"reward(?:>=(?P<level>-?\d+(?:\.\d+)?))?")


@dataclass
class StepSuccess:
    """How to label, and what was lost on the way."""

    source: str | None = None
    """`reward`, `reward>=LEVEL`, or None: `next.success`."""
    frame: Frame = "next"
    lost: list[str] = field(default_factory=list)
    """Names of the episodes whose only success is about a state that is not in the file."""

    def __post_init__(self) -> None:
        if self.source is not None and _REWARD.fullmatch(self.source) is None:
            raise EpisodeError(
                f"--success-from is {self.source!r}: it can be reward (above 0 is success) or 'reward>=0.9'"
            )

    def apply(self, name: str, episode: Episode) -> Episode:
        """The episode labelled so; an error where it holds nothing to label it by."""
        flags = self._of_success(name, episode) if self.source is None else self._of_rewards(name, episode)
        states = episode.states_count
        after = np.concatenate([[False], flags]) if self.frame == "next" else np.append(flags, False)
        success = after[:states]
        if flags.any() and not success.any():
            self.lost.append(name)
        return with_success(episode, success, f"{self.source or NEXT_SUCCESS}, {self.frame} frame")

    def _of_success(self, name: str, episode: Episode) -> np.ndarray:
        flags = episode.signals.get(NEXT_SUCCESS)
        if flags is None:
            raise EpisodeError(
                f"episode {name} holds no {NEXT_SUCCESS}, and --success-at is about that: add --success-from reward"
            )
        return np.asarray(flags).reshape(-1).astype(bool)

    def _of_rewards(self, name: str, episode: Episode) -> np.ndarray:
        rows = next((episode.signals[key] for key in (NEXT_REWARD, ROW_REWARDS) if key in episode.signals), None)
        if rows is None and "rewards" in episode.meta.extra.get("missing", ()):
            raise EpisodeError(f"episode {name} holds no rewards to label it by: leave --success-from out")
        rewards = np.asarray(episode.rewards if rows is None else rows, np.float64).reshape(-1)
        assert self.source is not None
        found = _REWARD.fullmatch(self.source)
        if found is not None and found["level"] is not None:
            return rewards >= float(found["level"])
        values = np.unique(rewards)
        if len(values) > 2:
            raise EpisodeError(
                f"episode {name} has {len(values)} different rewards from {values[0]:g} to {values[-1]:g}, so they are "
                f"not sparse: say from where on they are a success, as in --success-from 'reward>={values[-1]:g}'"
            )
        return rewards > 0


def by_steps(episodes: Iterator[tuple[str, Episode]], rule: StepSuccess) -> Iterator[tuple[str, Episode]]:
    """Episodes labelled by a rule."""
    return ((name, rule.apply(name, episode)) for name, episode in episodes)
