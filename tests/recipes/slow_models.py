"""Reward models that take a known time to score, in whichever process: a lower bound for reported seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from referee.models import Artifact, Calibration, ModelSpec, build
from referee.models.registry import register
from referee.models.resnet_reward import ResNetRewardModel
from referee.models.vlm import Answers
from referee.models.window import Window

SECONDS = 0.005
"""That scoring a frame, or a window, takes at least."""


@register("slow")
class SlowModel(ResNetRewardModel):
    """A small network that sleeps for each frame."""

    def encode_views(self, views: Tensor) -> Tensor:
        """f32[m,3,S,S] → f32[m,C]"""
        time.sleep(SECONDS * len(views) / len(self.spec.cameras))
        return super().encode_views(views)


class SlowWindows:
    """Answers each window alike, and sleeps for it."""

    def __init__(self) -> None:
        self.answered = 0

    def judge(self, windows: Sequence[Window]) -> Answers:
        """One answer per window."""
        time.sleep(SECONDS * len(windows))
        self.answered += len(windows)
        return Answers(("positive",) * len(windows), np.ones(len(windows), np.float32), None, ("",) * len(windows))


def save_slow_model(folder: Path, provenance: dict[str, Any] | None = None) -> Path:
    """An artifact of the slow network with random weights; who opens it imports this module."""
    torch.manual_seed(0)
    spec = ModelSpec(
        model_type="slow", arch="resnet10", width=4, image_size=64, cameras=("front", "side"), hidden_dim=8
    )
    Artifact(build(spec).eval(), Calibration(), provenance or {}).save(folder)
    return folder
