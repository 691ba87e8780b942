"""What every reward model is: pictures in, one logit per frame out, the same number wherever it is asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from referee.metrics.calibration import probability as probability_of
from referee.models.spec import MAIN_NAMES, ModelError, ModelSpec
from referee.models.threads import in_threads

__all__ = ["FrameVerdict", "ModelError", "ModelSpec", "RewardModel", "Verdict", "probability_of"]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's, of pixels in 0..1."""
MICRO_BATCH = 32
"""Frames that a CPU takes at once: their activations stay in its caches."""


@dataclass(frozen=True)
class Verdict:
    """What a model says about n frames."""

    score: np.ndarray
    """f32[n], on the model's own scale (the logit of a classifier)."""
    probability: np.ndarray | None
    """f32[n] in 0..1, calibrated where there is a calibration."""
    success: np.ndarray | None
    """bool[n]: whether the probability reaches the threshold; a gate over time is applied elsewhere."""

    @staticmethod
    def of(logits: np.ndarray, *, temperature: float = 1.0, threshold: float = 0.5) -> FrameVerdict:
        """The verdict of a classifier."""
        probability = probability_of(logits, temperature)
        return FrameVerdict(logits, probability, probability >= threshold)


@dataclass(frozen=True)
class FrameVerdict(Verdict):
    """The verdict of an image classifier, which has all three."""

    probability: np.ndarray
    """f32[n] in 0..1, calibrated where there is a calibration."""
    success: np.ndarray
    """bool[n]: whether the probability reaches the threshold; a gate over time is applied elsewhere."""


class RewardModel(nn.Module):
    """An encoder of pictures and a head on its features; a model of your own gives `encode` and `head`.

    `forward` is `head(encode(prepared))`. Where `spec.freeze_encoder` is set, the module named `encoder` is neither
    trained nor put in training mode, and `encode` builds no graph.
    """

    encoder: nn.Module

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.register_buffer("_mean", torch.tensor(MEAN), persistent=False)
        self.register_buffer("_std", torch.tensor(STD), persistent=False)
        self._mean: Tensor
        self._std: Tensor

    # --- what a model is ---

    @abstractmethod
    def encode_views(self, views: Tensor) -> Tensor:
        """Features of single pictures: f32[m,3,H,W] → f32[m,…], each row for itself."""

    @abstractmethod
    def head(self, features: Tensor) -> Tensor:
        """Logits f32[n] of features f32[n,d]; everything here is trained even where the encoder is frozen."""

    def embed(self, features: Tensor) -> Tensor:
        """A small summary f32[n,e] of features f32[n,d], in which unusual frames lie far from usual ones."""
        return features

    # --- what all models share ---

    def prepare(self, images: np.ndarray | Tensor) -> Tensor:
        """Frames as the net wants them: f32[n,V,3,S,S], cropped, scaled and normalised as the spec says.

        images: uint8[n,V,H,W,3], or float in 0..1; V is the number of cameras, and may be left out where it is 1.
        """
        return prepare(images, self.spec, self._mean, self._std)

    def encode(self, prepared: Tensor) -> Tensor:
        """Features f32[n,d] of prepared frames, those of the first camera first."""
        count, views = prepared.shape[:2]
        frozen = self.spec.freeze_encoder
        half = self.spec.precision == "bf16"
        with (
            torch.set_grad_enabled(torch.is_grad_enabled() and not frozen),
            torch.autocast(prepared.device.type, torch.bfloat16, enabled=half),
        ):
            features = self.encode_views(prepared.flatten(0, 1))
        return features.float().reshape(count, views, *features.shape[1:]).flatten(1)

    def forward(self, prepared: Tensor) -> Tensor:
        """Logits f32[n] of prepared frames."""
        return self.head(self.encode(prepared))

    def loss(self, images: np.ndarray | Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """The mean over frames of `weight ×` binary cross-entropy; labels are 1 and 0."""
        logits = self(self.prepare(images))
        return bce(logits, labels, weights)

    def logits(self, images: np.ndarray | Tensor, batch_size: int = 256) -> np.ndarray:
        """f32[n], in evaluation mode, without a trace on the model."""
        return np.concatenate([np.empty(0, np.float32), *self.by_pieces(self, images, batch_size)])

    def features(self, images: np.ndarray | Tensor, batch_size: int = 256) -> np.ndarray:
        """f32[n,d], the same for features."""
        pieces = self.by_pieces(self.encode, images, batch_size)
        return np.concatenate(pieces) if pieces else np.empty((0, 0), np.float32)

    def seen(self, images: np.ndarray | Tensor, batch_size: int = 256) -> tuple[np.ndarray, np.ndarray]:
        """Logits f32[n] and summaries f32[n,e] (`embed`) of frames, both from one pass."""
        return split_seen(self.by_pieces(lambda prepared: joined(self, self.encode(prepared)), images, batch_size))

    def score(self, observations: Mapping[str, np.ndarray], *, cameras: Sequence[str] | None = None) -> FrameVerdict:
        """What the model says about observations as environments give them, or about {camera: images}.

        cameras: names of the views in `main_images` and `extra_view_images`; see `select_views`.
        """
        return Verdict.of(self.logits(select_views(observations, self.spec.cameras, cameras)))

    def train(self, mode: bool = True) -> RewardModel:
        """Training mode, except for a frozen encoder."""
        super().train(mode)
        if self.spec.freeze_encoder and hasattr(self, "encoder"):
            self.encoder.eval()
        return self

    def freeze(self, frozen: bool = True) -> RewardModel:
        """Freeze the encoder, or let it learn."""
        self.spec = self.spec.but(freeze_encoder=frozen)
        if hasattr(self, "encoder"):
            self.encoder.requires_grad_(not frozen)
        elif frozen:
            raise ModelError(f"{type(self).__name__} has no module named encoder that could be frozen")
        return self.train(self.training)

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Those that an optimiser gets."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def by_pieces(
        self, run: Callable[[Tensor], Tensor], images: np.ndarray | Tensor, batch_size: int = 256
    ) -> list[np.ndarray]:
        """What `run` makes of prepared frames, some at a time, in evaluation mode; on a CPU side by side."""
        check_shape(images, self.spec)
        size = max(1, min(batch_size, MICRO_BATCH) if self._mean.device.type == "cpu" else batch_size)
        starts = range(0, len(images), size)
        with evaluating(self):
            return in_threads(lambda start: run(self.prepare(images[start : start + size])).cpu().numpy(), starts)


def joined(model: RewardModel, features: Tensor) -> Tensor:
    """f32[n,1+e]: the logits and the summaries of features, side by side."""
    return torch.cat([model.head(features)[:, None], model.embed(features)], 1)


def split_seen(pieces: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The inverse, of all pieces."""
    table = np.concatenate(pieces) if pieces else np.empty((0, 1), np.float32)
    return table[:, 0], table[:, 1:]


class evaluating:
    """Evaluation mode without gradients, and the mode as it was afterwards."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._inference = model, torch.inference_mode()

    def __enter__(self) -> None:
        self._training = self._model.training
        self._model.eval()
        self._inference.__enter__()

    def __exit__(self, *reason: object) -> None:
        self._inference.__exit__(*reason)
        self._model.train(self._training)


def bce(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean over frames of `weight ×` binary cross-entropy."""
    return F.binary_cross_entropy_with_logits(logits, labels.to(logits), weights)


def prepare(images: np.ndarray | Tensor, spec: ModelSpec, mean: Tensor, std: Tensor) -> Tensor:
    """See `RewardModel.prepare`."""
    pixels = sized(images, spec, mean.device)
    whole = pixels.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    whole = whole.div_(255) if pixels.dtype == torch.uint8 else whole
    if spec.normalize:
        # Whole rows at a time: five times as fast as three colours at a time.
        rows = whole.flatten(-2)
        rows.sub_(mean.repeat(spec.image_size)).div_(std.repeat(spec.image_size))
    # Channels stay last in memory, where convolutions on a CPU like them.
    return whole.permute(0, 1, 4, 2, 3)


def sized(images: np.ndarray | Tensor, spec: ModelSpec, device: torch.device) -> Tensor:
    """Pixels [n,V,S,S,3], cropped and scaled as the spec says: uint8 that need no scaling, or float in 0..1."""
    check_shape(images, spec)
    if isinstance(images, np.ndarray) and (min(images.strides) < 0 or not images.flags.writeable):
        images = images.copy()  # torch knows neither mirrored nor read-only arrays
    pixels = torch.as_tensor(images, device=device)
    pixels = pixels[:, None] if pixels.ndim == 4 else pixels
    if pixels.is_floating_point():
        inside = bool(((pixels >= 0) & (pixels <= 1)).all())
        if not inside and bool(pixels.isnan().any()):
            raise ModelError("images hold NaN: look for a division by zero where they are made")
        if not inside:
            raise ModelError(
                f"float images must be in 0..1, but they are in {float(pixels.min()):g}..{float(pixels.max()):g}: "
                "divide by 255, or give uint8"
            )
    elif pixels.dtype != torch.uint8:
        raise ModelError(f"images are {pixels.dtype}, but uint8 or float in 0..1 is needed")
    if not spec.crop and pixels.shape[2:4] == (spec.image_size,) * 2:
        return pixels
    return torch.stack([_sized(pixels[:, view], spec, view) for view in range(pixels.shape[1])], 1)


def _sized(pixels: Tensor, spec: ModelSpec, view: int) -> Tensor:
    """One view [n,S,S,3] of pixels [n,H,W,3]."""
    camera = spec.cameras[view]
    if camera in spec.crop:
        top, left, height, width = spec.crop[camera]
        if top + height > pixels.shape[1] or left + width > pixels.shape[2]:
            raise ModelError(
                f"the crop of {camera} ends at row {top + height}, column {left + width}, but its pictures have "
                f"{pixels.shape[1]} rows and {pixels.shape[2]} columns"
            )
        pixels = pixels[:, top : top + height, left : left + width]
    side = spec.image_size
    if pixels.shape[1:3] == (side, side):
        return pixels if len(spec.cameras) == 1 else _unit(pixels)
    if spec.resize == "none":
        raise ModelError(
            f"pictures of {camera} have {pixels.shape[1]}x{pixels.shape[2]} px, but the model takes {side}x{side}: "
            f"record at that size, or train on pictures of {pixels.shape[1]} px with actor.model.image_size={side}"
        )
    nchw = F.interpolate(_unit(pixels).permute(0, 3, 1, 2), (side, side), mode="bilinear", antialias=True)
    return nchw.permute(0, 2, 3, 1)


def _unit(pixels: Tensor) -> Tensor:
    """Pixels as f32 in 0..1."""
    return pixels.to(torch.float32) / 255 if pixels.dtype == torch.uint8 else pixels.to(torch.float32)


def check_shape(images: np.ndarray | Tensor, spec: ModelSpec) -> None:
    """Raise unless the images have the axes [n,V,H,W,3], or [n,H,W,3] of the only camera."""
    views = len(spec.cameras)
    if not isinstance(images, np.ndarray | Tensor):
        raise ModelError(f"images are a {type(images).__name__}, but an array or a tensor is needed")
    shape = list(images.shape)
    if shape[-1:] != [3] or len(shape) not in (4, 5):
        wanted = "[n,H,W,3]" if views == 1 else f"[n,{views},H,W,3]"
        hint = ": the three colours come last" if 3 in shape else ""
        raise ModelError(f"images have the shape {shape}, but {wanted} is needed{hint}")
    found = 1 if len(shape) == 4 else shape[1]
    if found != views:
        raise ModelError(
            f"images show {found} of the {views} cameras {', '.join(spec.cameras)}: their shape is {shape}"
        )


def select_views(
    observations: Mapping[str, np.ndarray], wanted: Sequence[str], cameras: Sequence[str] | None = None
) -> np.ndarray | Tensor:
    """The images [n,V,H,W,3] of the wanted cameras out of observations.

    observations: {camera: [n,H,W,3]}; or `main_images` [n,H,W,3] and `extra_view_images` [n,V-1,H,W,3].
    cameras: what those views are called. Without names, the views must be as many as the model's, in its order;
        a model of the main camera alone takes that.
    """
    if all(name in observations for name in wanted):
        return _stack([observations[name] for name in wanted], wanted)
    if "main_images" not in observations:
        missing = next(name for name in wanted if name not in observations)
        have = ", ".join(sorted(observations)) or "nothing"
        raise ModelError(f"the model looks at camera {missing!r}, but the observations hold {have}")
    views = [observations["main_images"]]
    extra = observations.get("extra_view_images")
    if extra is not None:
        if extra.ndim != 5:
            raise ModelError(f"extra_view_images have the shape {list(extra.shape)}, but [n,V,H,W,3] is needed")
        views += [extra[:, view] for view in range(extra.shape[1])]
    if cameras is not None:
        if len(cameras) != len(views):
            raise ModelError(f"{len(cameras)} cameras are named, but the observations show {len(views)} views")
        places = [_place(name, cameras) for name in wanted]
    elif len(wanted) == 1 and wanted[0] in MAIN_NAMES:
        places = [0]
    elif len(views) == len(wanted):
        places = list(range(len(views)))
    else:
        raise ModelError(
            f"the model looks at {len(wanted)} cameras ({', '.join(wanted)}), but the observations show {len(views)} "
            "views without names: give `cameras`, or {camera: images}"
        )
    return _stack([views[place] for place in places], wanted)


def frames_of(
    observations: Mapping[str, np.ndarray], wanted: Sequence[str], cameras: Sequence[str] | None = None
) -> np.ndarray:
    """The same as an array that has all five axes [n,V,H,W,3], of a single camera too."""
    views = np.asarray(select_views(observations, wanted, cameras))
    return views if views.ndim == 5 else views[:, None]


def _place(name: str, cameras: Sequence[str]) -> int:
    """Where a camera is among others; a name of the main camera is the first, unless one of them is called so."""
    if name in MAIN_NAMES and name not in cameras:
        return 0
    if name not in cameras:
        raise ModelError(f"the model looks at camera {name!r}, but the observations show {', '.join(cameras)}")
    return list(cameras).index(name)


def _stack(views: Sequence[np.ndarray | Tensor], names: Sequence[str]) -> np.ndarray | Tensor:
    if len(views) == 1:
        return views[0]
    strange = next((view.shape for view in views if view.shape != views[0].shape), None)
    if strange is not None:
        raise ModelError(f"views {', '.join(names)} differ in shape: {list(views[0].shape)} and {list(strange)}")
    if all(isinstance(view, Tensor) for view in views):
        return torch.stack(list(views), 1)  # type: ignore[arg-type]
    return np.stack([np.asarray(view) for view in views], 1)
