"""The alarm: says, without any truth, that the frames which are judged are no longer such as the model knows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass

import numpy as np
import torch

from referee.errors import RefereeError
from referee.models import Artifact
from referee.models.artifact import REFERENCE
from referee.models.contract import probability_of

USUAL = 0.98
"""Frames are strange beyond the distance within which so many frames of validation are."""
BANDS = {"unknown": 0.12, "strange": 0.30, "torn": 0.05, "drift": 0.10}
"""What is allowed of each signal, as a mean over the window; docs/rewards.md says how they were chosen."""
WINDOW, LEAST = (256, 128), (128, 64)
"""Frames, and second views, over which signals are averaged at least; and so many before a signal says anything."""
FIRED = (256, 64)
"""The same two numbers of frames that are called a success."""


@dataclass(frozen=True)
class Look:
    """The judged frames of one iteration, as means."""

    strange: float
    """The share of frames farther from those of training than nearly all of validation; 0.02 is usual."""
    unsure: float
    """4·p·(1 − p): 0 where the model is sure, 1 where it has no idea."""
    frames: int
    torn: float
    """How far the probabilities of a frame and of another view of it are apart."""
    views: int
    unknown: float
    """Of the frames called a success, the share that is unlike the known ones; 0.05 is usual."""
    fired: int


class Alarm:
    """Watches judged frames iteration by iteration; a level above 1 raises it, and it stays raised."""

    def __init__(self, artifact: Artifact) -> None:
        self.first_at: int | None = None
        """The step at which it was raised for the first time."""
        self.take(artifact)

    def take(self, artifact: Artifact) -> None:
        """Watch this model from now on; one that has learned from what was strange begins quietly."""
        if artifact.reference is None:
            raise RefereeError(
                f"{artifact.folder or 'the artifact'} holds no {REFERENCE}, so there is nothing to compare judged "
                "frames with: set reward.alarm.enabled=false, or train the model with Referee"
            )
        self.raised_at: int | None = None
        """The step at which it was raised, and still is; None while it is quiet."""
        self._artifact, self._reference = artifact, artifact.reference
        self._far = artifact.reference.usual_within(USUAL)
        self._recent: deque[Look] = deque()
        self._fired: deque[Look] = deque()
        self._begun: list[Look] = []

    def look(
        self,
        summary: np.ndarray,
        probability: np.ndarray,
        images: np.ndarray,
        rows: np.ndarray,
        step: int,
        threshold: float,
    ) -> dict[str, float]:
        """The numbers of an iteration under their log names; none before enough was seen.

        summary, probability: f32[n,e] and f32[n] of all frames that were judged; threshold: of a success.
        images: uint8[m,V,H,W,3] of some of them, `rows` int[m], which are looked at once more.
        """
        if not len(probability):
            return {}
        other = self._artifact.logits(other_view(images)) if len(images) else np.zeros(0)
        apart = np.abs(probability_of(other, self._artifact.calibration.temperature) - probability[rows])
        fired = summary[probability >= threshold] if self._reference.knows_successes else summary[:0]
        found = Look(
            strange=float((self._reference.distance(summary) > self._far).mean()),
            unsure=float((4 * probability * (1 - probability)).mean()),
            frames=len(probability),
            torn=float(apart.mean()) if len(apart) else 0.0,
            views=len(apart),
            unknown=float(self._reference.unknown(fired).mean()) if len(fired) else 0.0,
            fired=len(fired),
        )
        self._recent.append(found)
        while all(have >= need for have, need in zip(_counts(list(self._recent)[1:]), WINDOW, strict=False)):
            self._recent.popleft()
        self._fired.extend([found] if found.fired else [])
        while sum(each.fired for each in list(self._fired)[1:]) >= FIRED[0]:
            self._fired.popleft()
        if _counts(self._begun)[0] < LEAST[0]:
            self._begun.append(found)
        signals = self.signals()
        if not signals:
            return {}
        level = max(value / BANDS[name] for name, value in signals.items())
        if level > 1 and self.raised_at is None:
            self.raised_at = step
            self.first_at = step if self.first_at is None else self.first_at
        return {"reward/alarm": level, **{f"reward/alarm_{name}": value for name, value in signals.items()}}

    def signals(self) -> dict[str, float]:
        """What each signal is over the window; those of which too little was seen are left out."""
        frames, views = _counts(self._recent)
        found: dict[str, float] = {}
        if frames >= LEAST[0]:
            found["strange"] = _mean(self._recent, "strange", "frames")
            before, now = (_mean(looks, "unsure", "frames") for looks in (self._begun, self._recent))
            found["drift"] = max(0.0, now - before)
        if views >= LEAST[1]:
            found["torn"] = _mean(self._recent, "torn", "views")
        if sum(each.fired for each in self._fired) >= FIRED[1]:
            found["unknown"] = _mean(self._fired, "unknown", "fired")
        return found

    def reason(self) -> str:
        """In words, what is out of its band most."""
        signals = self.signals()
        worst = max(signals, key=lambda name: signals[name] / BANDS[name], default="")
        words = {
            "unknown": "{:.0%} of the frames that it calls a success are unlike the successes it knows (usual: 5 %)",
            "strange": "{:.0%} of the judged frames are unlike those of training (usual: 2 %)",
            "torn": "two views of a judged frame differ by {:.2f} in probability (usual: below 0.03)",
            "drift": "the model is less sure than at the start of the run, by {:.2f}",
        }
        return words[worst].format(signals[worst]) if worst else "nothing was seen yet"

    def save_state(self) -> dict[str, np.ndarray]:
        """Everything that later answers depend on."""
        raised = [-1 if step is None else step for step in (self.raised_at, self.first_at)]
        looks = {"recent": self._recent, "fired": self._fired, "begun": self._begun}
        return {**{name: _table(each) for name, each in looks.items()}, "raised": np.array(raised)}

    def restore_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from a saved state."""
        self._recent, self._fired = (deque(_looks(state[name])) for name in ("recent", "fired"))
        self._begun = _looks(state["begun"])
        self.raised_at, self.first_at = (None if step < 0 else step for step in state["raised"].tolist())


def other_view(images: np.ndarray, pixels: int = 2, light: float = 0.95) -> np.ndarray:
    """Frames uint8[n,V,H,W,3] as seen a little from the side, in a little less light: nothing that changes success."""
    there = torch.from_numpy(np.ascontiguousarray(images))
    moved = torch.cat([there[..., :1, :].expand(*there.shape[:-2], pixels, 3), there[..., :-pixels, :]], dim=-2)
    return (moved * light).to(torch.uint8).numpy()


def _counts(looks: Iterable[Look]) -> tuple[int, int]:
    looks = list(looks)
    return sum(look.frames for look in looks), sum(look.views for look in looks)


def _mean(looks: Iterable[Look], name: str, weight: str) -> float:
    looks = list(looks)
    return float(np.average([getattr(look, name) for look in looks], weights=[getattr(look, weight) for look in looks]))


def _table(looks: Iterable[Look]) -> np.ndarray:
    return np.array([astuple(look) for look in looks], np.float64).reshape(-1, 7)


def _looks(table: np.ndarray) -> list[Look]:
    return [Look(a, b, int(c), d, int(e), f, int(g)) for a, b, c, d, e, f, g in table.tolist()]
