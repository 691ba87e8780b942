"""Judged episodes and an artifact for tests: what it says can be computed by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from referee.audit.calibrate import Choice
from referee.audit.judged import Judged
from referee.episodes import Episode, Meta
from referee.errors import RefereeError
from referee.metrics.calibration import logit


def said(id: str, labels: str, *probabilities: float) -> Judged:
    """An episode from its labels, as `001?`, and the probability that a model gives to each state."""
    return Judged(
        id,
        np.array([{"0": 0, "1": 1, "?": -1}[each] for each in labels], np.int8),
        logit(np.array(probabilities)).astype(np.float32),
    )


def random_episodes(count: int, *, seed: int = 0, states: int = 30, skill: float = 3.0) -> list[Judged]:
    """Half fail; logits are noise around ±skill, with an offset of each episode's own."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(count):
        labels = np.zeros(states, np.int8)
        if number % 2:
            labels[random.integers(states // 3, states) :] = 1
        noise = random.normal(size=states) + random.normal()
        found.append(Judged(f"e{number:03d}", labels, (skill * (2.0 * labels - 1) + noise).astype(np.float32)))
    return found


def at(threshold: float = 0.5, k: int = 1, n: int = 1, temperature: float = 1.0) -> Choice:
    """An operating point."""
    return Choice(temperature, threshold, k, n, 0.01)


@dataclass
class FakeArtifact:
    """Its logit is 12·(mean brightness of the cameras in 0..1 - 0.5)."""

    cameras: tuple[str, ...] = ("front",)
    calibration: Any = field(default_factory=at)
    provenance: dict[str, Any] = field(default_factory=dict)
    largest: int = 0

    @property
    def model(self) -> Any:
        return SimpleNamespace(spec=SimpleNamespace(cameras=self.cameras))

    def logits(self, images: np.ndarray, batch_size: int = 256) -> np.ndarray:
        if images.ndim != (4 if len(self.cameras) == 1 else 5):
            raise RefereeError(f"images of {list(images.shape)} are not usable")
        self.largest = max(self.largest, len(images))
        brightness = images.reshape(len(images), -1).mean(axis=1) / 255
        return (12 * (brightness - 0.5)).astype(np.float32)


def bright_episode(id: str, brightness: list[int], success: list[int], *, pixels: int = 6) -> Episode:
    """Two cameras: `front` shows a given brightness in each state, `side` is always of 100."""
    count = len(brightness)
    front = np.broadcast_to(np.array(brightness, np.uint8)[:, None, None, None], (count, pixels, pixels, 3)).copy()
    return Episode(
        {"main_images": front, "extra_view_images": np.full((count, 1, pixels, pixels, 3), 100, np.uint8)},
        np.zeros((count - 1, 2), np.float32),
        np.zeros(count - 1, np.float32),
        np.zeros(count - 1, bool),
        np.zeros(count - 1, bool),
        np.array(success, bool),
        meta=Meta(id=id, cameras=("front", "side"), source="test"),
    ).validate()
