"""A small reward model, and frames that it can learn, for tests of training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class TinySpec:
    """What `features` and `fit` ask a specification for."""

    pixels: int = 8

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


class TinyModel(nn.Module):
    """One convolution with BatchNorm, and a linear head; the encoder may be frozen."""

    def __init__(self, views: int = 1, *, dropout: float = 0.0, frozen: bool = False, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.spec = TinySpec()
        self.views, self.frozen = views, frozen
        self.encoder = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.drop = nn.Dropout(dropout)
        self.last = nn.Linear(4 * views, 1)
        self.encoder.requires_grad_(not frozen)

    def train(self, mode: bool = True) -> TinyModel:
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
        return self

    def prepare(self, images: Tensor) -> Tensor:
        images = images[:, None] if images.ndim == 4 else images
        return images.movedim(-1, 2).float() / 255 - 0.5

    def encode(self, prepared: Tensor) -> Tensor:
        return self.encoder(prepared.flatten(0, 1)).mean((2, 3)).reshape(len(prepared), -1)

    def features(self, images: Tensor) -> np.ndarray:
        was_training = self.training
        self.eval()
        with torch.no_grad():
            found = self.encode(self.prepare(images)).numpy()
        self.train(was_training)
        return found

    def head(self, features: Tensor) -> Tensor:
        return self.last(self.drop(features))[:, 0]

    def forward(self, prepared: Tensor) -> Tensor:
        return self.head(self.encode(prepared))


class TinyFrames:
    """Noise; successes are redder. What a dataset gives, without a file."""

    def __init__(self, count: int = 60, *, views: int = 1, seed: int = 0, share: float = 0.25) -> None:
        random = np.random.default_rng(seed)
        labels = (np.arange(count) < max(1, share * count)).astype(np.int64)
        random.shuffle(labels)
        images = random.integers(0, 200, (count, views, 8, 8, 3)).astype(np.uint8)
        images[labels == 1, :, :, :, 0] += 55
        self.labels = torch.from_numpy(labels)
        self.images = torch.from_numpy(images if views > 1 else images[:, 0])

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Any) -> tuple[Tensor, Tensor]:
        chosen = torch.as_tensor(np.asarray(indices))
        return self.images[chosen], self.labels[chosen]
