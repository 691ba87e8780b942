"""The alarm: says, without any truth, that the frames which are judged are no longer such as the model knows."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from referee.errors import RefereeError
from referee.models import Artifact
from referee.models.artifact import REFERENCE
from referee.models.contract import evaluating, probability_of

USUAL = 0.98
"""Frames are strange beyond the distance within which so many frames of validation are."""
BANDS = {"strange": 0.06, "torn": 0.05, "drift": 0.10}
"""What is allowed of each signal, as a mean over the window; docs/rewards.md says how they were chosen."""
WINDOW, LEAST = 256, 128
"""The latest frames over which signals are averaged, and so many before anything is said or drift is measured."""


@dataclass(frozen=True)
class Look:
    """Some judged frames of one iteration, as means."""

    strange: float
    """The share of frames farther from those of training than nearly all of validation; 0.02 is usual."""
    torn: float
    """How far the probabilities of a frame and of another view of it are apart."""
    unsure: float
    """4·p·(1 − p): 0 where the model is sure, 1 where it has no idea."""
    frames: int


class Alarm:
    """Watches judged frames, a few of each iteration; `level` above 1 is the alarm, and it stays raised."""

    def __init__(self, artifact: Artifact) -> None:
        if artifact.reference is None:
            raise RefereeError(
                f"{artifact.folder or 'the artifact'} holds no {REFERENCE}, so there is nothing to compare judged "
                "frames with: set reward.alarm.enabled=false, or train the model with Referee"
            )
        self.raised_at: int | None = None
        """The step at which it was raised."""
        self._artifact, self._reference = artifact, artifact.reference
        self._far = artifact.reference.usual_within(USUAL)
        self._recent: deque[Look] = deque()
        self._begun: list[Look] = []

    def look(self, images: np.ndarray, step: int) -> dict[str, float]:
        """The numbers of an iteration under their log names; none before enough was seen.

        images: uint8[n,V,H,W,3], drawn evenly from the frames that were judged.
        """
        if not len(images):
            return {}
        found = self._see(images)
        self._recent.append(found)
        while _frames(self._recent) - self._recent[0].frames >= WINDOW:
            self._recent.popleft()
        if _frames(self._begun) < LEAST:
            self._begun.append(found)
        if _frames(self._recent) < LEAST:
            return {}
        signals = self.signals()
        level = max(value / BANDS[name] for name, value in signals.items())
        if level > 1 and self.raised_at is None:
            self.raised_at = step
        return {"reward/alarm": level, **{f"reward/alarm_{name}": value for name, value in signals.items()}}

    def signals(self) -> dict[str, float]:
        """What each signal is over the window."""
        unsure, before = _mean(self._recent, "unsure"), _mean(self._begun, "unsure")
        return {
            "strange": _mean(self._recent, "strange"),
            "torn": _mean(self._recent, "torn"),
            "drift": max(0.0, unsure - before),
        }

    def reason(self) -> str:
        """In words, what is out of its band."""
        signals = self.signals()
        worst = max(signals, key=lambda name: signals[name] / BANDS[name])
        return {
            "strange": f"{signals['strange']:.0%} of the judged frames are unlike those of training (usual: 2 %)",
            "torn": f"two views of a judged frame differ by {signals['torn']:.2f} in probability (usual: below 0.03)",
            "drift": f"the model is less sure than at the start of the run, by {signals['drift']:.2f}",
        }[worst]

    def save_state(self) -> dict[str, np.ndarray]:
        """Everything that later answers depend on."""
        return {
            "recent": _table(self._recent),
            "begun": _table(self._begun),
            "raised_at": np.array(-1 if self.raised_at is None else self.raised_at),
        }

    def restore_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from a saved state."""
        self._recent = deque(_look(row) for row in state["recent"])
        self._begun = [_look(row) for row in state["begun"]]
        self.raised_at = None if state["raised_at"] < 0 else int(state["raised_at"])

    def _see(self, images: np.ndarray) -> Look:
        model, temperature = self._artifact.model, self._artifact.calibration.temperature
        with evaluating(model):
            features = model.encode(model.prepare(images))
            summary = model.embed(features).cpu().numpy()
            one = probability_of(model.head(features).cpu().numpy(), temperature)
            other = probability_of(model(model.prepare(other_view(images))).cpu().numpy(), temperature)
        return Look(
            strange=float((self._reference.distance(summary) > self._far).mean()),
            torn=float(np.abs(one - other).mean()),
            unsure=float((4 * one * (1 - one)).mean()),
            frames=len(images),
        )


def other_view(images: np.ndarray, pixels: int = 2, light: float = 0.95) -> np.ndarray:
    """Frames uint8[n,V,H,W,3] as seen a little from the side, in a little less light: nothing that changes success."""
    there = torch.from_numpy(np.ascontiguousarray(images))
    moved = torch.cat([there[..., :1, :].expand(*there.shape[:-2], pixels, 3), there[..., :-pixels, :]], dim=-2)
    return (moved * light).to(torch.uint8).numpy()


def _frames(looks: deque[Look] | list[Look]) -> int:
    return sum(look.frames for look in looks)


def _mean(looks: deque[Look] | list[Look], name: str) -> float:
    weights = [look.frames for look in looks]
    return float(np.average([getattr(look, name) for look in looks], weights=weights))


def _table(looks: deque[Look] | list[Look]) -> np.ndarray:
    return np.array([[look.strange, look.torn, look.unsure, look.frames] for look in looks]).reshape(-1, 4)


def _look(row: np.ndarray) -> Look:
    return Look(float(row[0]), float(row[1]), float(row[2]), int(row[3]))
