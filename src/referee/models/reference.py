"""What the frames of training looked like to a model: enough to say later that a frame is unlike them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch

from referee.models.contract import ModelError

MAX_DIM = 512
"""Features of more dimensions are projected to so many."""
SAMPLE = 256
FRAMES = 64
KNOWN = 0.95
"""Of the successes of validation, so many are near enough to those of training to be known."""


@dataclass(frozen=True, eq=False)
class Reference:
    """Mean and precision of the features of training frames, and a few of the frames themselves."""

    mean: np.ndarray
    """f32[d]"""
    precision: np.ndarray
    """f32[d,d]: the inverse of the covariance, which is shrunk after Ledoit and Wolf."""
    sample: np.ndarray
    """f32[m,d]: features of some frames."""
    frames: np.ndarray
    """uint8[m,V,H,W,3]: some frames, to compare and to calibrate scoring back ends with."""
    projection: np.ndarray | None = None
    """f32[D,d], where features have more than `MAX_DIM` dimensions."""
    usual: np.ndarray | None = None
    """f32[m]: distances of frames of validation, which were not learnt from; None where there were none."""
    success_mean: np.ndarray | None = None
    """f32[d]: the same of the success frames alone, as those below; None where nobody said which they are."""
    success_precision: np.ndarray | None = None
    success_usual: np.ndarray | None = None

    @classmethod
    def of(
        cls, features: np.ndarray, frames: np.ndarray, *, successes: np.ndarray | None = None, seed: int = 0
    ) -> Self:
        """The reference of summaries f32[n,D] (`RewardModel.embed`) and of some or all frames uint8[m,V,H,W,3].

        successes: bool[n], which of the summaries are of success frames.
        """
        if len(features) < 2:
            raise ModelError(f"{len(features)} frames are too few to say what usual frames look like")
        frames = frames[:, None] if frames.ndim == 4 else frames
        if frames.dtype != np.uint8 or frames.ndim != 5:
            raise ModelError(f"frames must be uint8[n,V,H,W,3], not {frames.dtype}{list(frames.shape)}")
        random = np.random.default_rng(seed)
        wide = features.shape[1]
        projection = None
        if wide > MAX_DIM:
            projection = (random.standard_normal((wide, MAX_DIM)) / np.sqrt(MAX_DIM)).astype(np.float32)
            features = features @ projection
        mean = features.mean(0, dtype=np.float64)
        precision = np.linalg.inv(shrunk_covariance(features))
        wins = features[successes] if successes is not None and successes.sum() > 1 else None
        chosen = random.permutation(len(features))[:SAMPLE]
        some = np.sort(random.permutation(len(frames))[:FRAMES])
        return cls(
            mean.astype(np.float32),
            precision.astype(np.float32),
            features[chosen].astype(np.float32),
            np.ascontiguousarray(frames[some]),
            projection,
            success_mean=None if wins is None else wins.mean(0, dtype=np.float64).astype(np.float32),
            success_precision=None if wins is None else np.linalg.inv(shrunk_covariance(wins)).astype(np.float32),
        )

    def distance(self, features: np.ndarray) -> np.ndarray:
        """f32[n]: Mahalanobis distance of summaries f32[n,D] from the usual ones, about 1 for a usual frame.

        It is divided by the square root of the dimension, so that models of different width can be compared.
        """
        return _mahalanobis(self._projected(features), self.mean, self.precision)

    def _projected(self, features: np.ndarray) -> np.ndarray:
        return features if self.projection is None else features @ self.projection

    @property
    def knows_successes(self) -> bool:
        """Whether `unknown` can be answered."""
        return self.success_mean is not None and self.success_usual is not None and len(self.success_usual) > 0

    def unknown(self, features: np.ndarray, share: float = KNOWN) -> np.ndarray:
        """bool[n]: whether summaries f32[n,D] lie farther from the known successes than `share` of those of validation.

        Of true successes, about 1 - share do. A frame that fools a model often does: it is called a success for what it
        has in common with successes, and differs in the rest.
        """
        if not self.knows_successes:
            raise ModelError("the reference does not say which of its frames are successes: train the model again")
        assert self.success_usual is not None
        return self._from_successes(features) > float(np.quantile(self.success_usual, share))

    def _from_successes(self, features: np.ndarray) -> np.ndarray:
        assert self.success_mean is not None and self.success_precision is not None
        return _mahalanobis(self._projected(features), self.success_mean, self.success_precision)

    def calibrated(self, features: np.ndarray, *, successes: np.ndarray | None = None) -> Self:
        """The same with the distances of frames of validation, of their summaries f32[m,D]; successes: bool[m]."""
        found = replace(self, usual=np.sort(self.distance(features)))
        if successes is None or self.success_mean is None or not successes.any():
            return found
        return replace(found, success_usual=np.sort(self._from_successes(features[successes])))

    def usual_within(self, share: float) -> float:
        """The distance within which so many of the usual frames are: of validation, or else of training."""
        if self.usual is not None and len(self.usual):
            return float(np.quantile(self.usual, share))
        return float(np.quantile(_mahalanobis(self.sample, self.mean, self.precision), share))

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> Self:
        """The inverse of `arrays`."""
        missing = [name for name in ("mean", "precision", "sample", "frames") if name not in arrays]
        if missing:
            raise ModelError(f"holds no {missing[0]}")
        mean, precision, sample, frames = (arrays[name] for name in ("mean", "precision", "sample", "frames"))
        size = len(mean)
        projection, usual = arrays.get("projection"), arrays.get("usual")
        if usual is not None and usual.ndim != 1:
            raise ModelError("holds distances that are no list of numbers")
        if precision.shape != (size, size) or sample.shape[1:] != (size,) or frames.ndim != 5:
            raise ModelError("holds arrays that do not fit each other")
        if projection is not None and projection.shape[1:] != (size,):
            raise ModelError("holds a projection that does not fit")
        wins = [arrays.get(f"success_{name}") for name in ("mean", "precision", "usual")]
        shapes = ((size,), (size, size))
        if any(each is not None and each.shape != shape for each, shape in zip(wins, shapes, strict=False)):
            raise ModelError("holds successes that do not fit")
        return cls(mean, precision, sample, frames, projection, usual, *wins)


def _mahalanobis(features: np.ndarray, mean: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """f32[n]: the distance of features f32[n,d] from a mean, divided by the square root of the dimension."""
    # With torch, which keeps to its number of threads: those of numpy's BLAS go on spinning beside the next update.
    away = torch.from_numpy((features - mean).astype(np.float64))
    squares = ((away @ torch.from_numpy(precision).double()) * away).sum(1)
    return (squares.clamp_min(0) / len(mean)).sqrt().float().numpy()


def shrunk_covariance(samples: np.ndarray) -> np.ndarray:
    """f64[d,d]: the covariance of samples f[n,d], moved towards a multiple of one as far as Ledoit and Wolf (2004) say.

    Few samples of many dimensions give a covariance that cannot be inverted; this one can be.
    """
    count, size = samples.shape
    centred = samples.astype(np.float64) - samples.mean(0, dtype=np.float64)
    covariance = centred.T @ centred / count
    spread = np.trace(covariance) / size
    target = spread * np.eye(size)
    distance = np.sum((covariance - target) ** 2) / size
    # The mean over samples of |x xᵀ − S|², without forming any x xᵀ.
    squares = np.einsum("nd,nd->n", centred, centred) ** 2
    error = (squares.sum() / count - np.sum(covariance**2)) / (count * size)
    share = 1.0 if distance == 0 else min(1.0, max(0.0, error / distance))
    result = share * target + (1 - share) * covariance
    # Features that never change would still leave it singular.
    return result + max(1e-6 * spread, 1e-12) * np.eye(size)
