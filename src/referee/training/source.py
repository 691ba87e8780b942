"""What a step learns from: frames as images, changed at random, or as features that were encoded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from referee.config.reward_training import AugmentConfig
from referee.training.augment import augment
from referee.training.options import NO_AUGMENTATION


class Frames(Protocol):
    """Labelled frames: a `RewardBinaryDataset`, or anything that gives batches as it does."""

    labels: Tensor
    """int64[N]: 1 success, 0 failure."""

    def __len__(self) -> int: ...

    def batch(self, indices: Any) -> tuple[Tensor, Tensor]:
        """Images uint8[n,(V,)H,W,3] and labels int64[n]."""
        ...


class Source(Protocol):
    """Inputs of the network by their number."""

    labels: np.ndarray
    """int64[N]"""

    def inputs(self, indices: np.ndarray, random: np.random.Generator | None) -> Tensor:
        """A batch, changed at random, or as it is where `random` is None."""
        ...


class ImageSource:
    """Frames as images."""

    def __init__(self, frames: Frames, options: AugmentConfig = NO_AUGMENTATION) -> None:
        self.labels = frames.labels.numpy()
        self._frames, self._options = frames, options

    def inputs(self, indices: np.ndarray, random: np.random.Generator | None) -> Tensor:
        """uint8[n,(V,)H,W,3]"""
        images, _ = self._frames.batch(indices)
        return images if random is None else augment(images, self._options, random)


class FeatureSource:
    """Frames as features of a frozen encoder; each may be there several times, from differently changed images."""

    def __init__(self, copies: Sequence[np.ndarray], labels: np.ndarray) -> None:
        """copies: f32[N,d] each, the first of them from unchanged images."""
        self.labels = labels
        self._copies = copies

    def inputs(self, indices: np.ndarray, random: np.random.Generator | None) -> Tensor:
        """f32[n,d]"""
        if random is None or len(self._copies) == 1:
            return torch.from_numpy(self._copies[0][indices])
        chosen = random.integers(len(self._copies), size=len(indices))
        rows = np.empty((len(indices), self._copies[0].shape[1]), np.float32)
        for number, copy in enumerate(self._copies):
            mine = np.flatnonzero(chosen == number)
            rows[mine] = copy[indices[mine]]
        return torch.from_numpy(rows)
