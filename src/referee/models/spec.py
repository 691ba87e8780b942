"""What a model is, as plain values: enough to build it again and to turn a picture into its input."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from referee.errors import RefereeError
from referee.models.resnet import DEFAULT_ARCH, arch_named, layout_named

MAIN_NAMES = ("main_images", "base_camera")
"""Names that mean the main camera, whatever it is called."""
CHOICES: Mapping[str, tuple[str, ...]] = {
    "resize": ("none", "bilinear"),
    "precision": ("fp32", "bf16"),
    "norm": ("batch", "group"),
    "padding": ("torch", "same"),
    "pooling": ("spatial", "average"),
}


class ModelError(RefereeError):
    """A model, its weights or a picture for it are not as they must be."""


@dataclass(frozen=True)
class ModelSpec:
    """A model as plain values; what a model does not know (`num_spatial_blocks` of a `resnet`) is ignored by it."""

    model_type: str = "resnet"
    arch: str = DEFAULT_ARCH
    """The encoder. A net has one name: `resnet10` of width 16 is `resnet10_small`, whichever way it is written."""
    cameras: tuple[str, ...] = ("main_images",)
    """The views, in the order in which the model takes them."""
    image_size: int = 64
    """Height and width of the model's input."""
    resize: str = "none"
    """Pictures of another size are refused (`none`), or scaled to `image_size` (`bilinear`)."""
    crop: Mapping[str, tuple[int, int, int, int]] = field(default_factory=dict)
    """Camera → top, left, height, width in pixels of its pictures, cut out before they are scaled."""
    normalize: bool = True
    """Subtract ImageNet's mean and divide by its deviation, as pretrained encoders expect."""
    precision: str = "fp32"
    """Of the encoder; weights stay fp32."""
    width: int = 0
    """Channels of the encoder's first layer; 0 becomes the architecture's own."""
    norm: str = "batch"
    padding: str = "torch"
    hidden_dim: int | None = 256
    """Of the head; None makes it one linear layer."""
    dropout: float = 0.0
    freeze_encoder: bool = False
    num_spatial_blocks: int = 8
    """Learned weightings of the feature map, of `binary_classifier`."""
    pooling: str = "spatial"
    """Of `binary_classifier`: weigh the whole feature map, or its average (`use_pretrain: False` in older files)."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Anything that a model of your own needs, as plain JSON."""

    def __post_init__(self) -> None:
        layout = layout_named(self.arch)
        width = self.width or layout.width
        object.__setattr__(self, "width", width)
        object.__setattr__(self, "arch", arch_named(layout.blocks, layout.bottleneck, width))
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ModelError(f"{name} is {getattr(self, name)!r}, but it can be {' or '.join(allowed)}")
        if not self.cameras or len(set(self.cameras)) != len(self.cameras):
            raise ModelError(f"cameras are {list(self.cameras)}: name each view once, and at least one")
        if self.image_size < 8:
            raise ModelError(f"image_size is {self.image_size}, but at least 8 pixels are needed")
        if not (math.isfinite(self.dropout) and 0 <= self.dropout < 1):
            raise ModelError(f"dropout is {self.dropout}, but it is a share below 1")
        if self.num_spatial_blocks < 1 or self.width < 1 or (self.hidden_dim is not None and self.hidden_dim < 1):
            raise ModelError("width, hidden_dim and num_spatial_blocks must be positive")
        strange = [camera for camera in self.crop if camera not in self.cameras]
        if strange:
            raise ModelError(f"crop names {strange[0]!r}, which is not one of the cameras {', '.join(self.cameras)}")
        for camera, (top, left, height, width) in self.crop.items():
            if min(top, left) < 0 or min(height, width) < 1:
                raise ModelError(f"crop of {camera} must be top, left, height, width in pixels")

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        crop = {camera: list(box) for camera, box in self.crop.items()}
        return {**vars(self), "cameras": list(self.cameras), "crop": crop, "options": dict(self.options)}

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """The inverse of `to_json`; a name or a type that does not fit is an error."""
        if not isinstance(values, Mapping):
            raise ModelError("a model's spec must be a mapping of names to values")
        known = {each.name: each.default for each in fields(cls)}
        for name, value in values.items():
            if name not in known:
                raise ModelError(f"{str(name)[:100]} is no property of a model: they are {', '.join(known)}")
            if not _fits(name, value):
                raise ModelError(f"{name} of a model is {repr(value)[:100]}, which it cannot be")
        plain = dict(values)
        if "cameras" in plain:
            plain["cameras"] = tuple(plain["cameras"])
        if "crop" in plain:
            plain["crop"] = {camera: tuple(box) for camera, box in plain["crop"].items()}
        return cls(**plain)

    def but(self, **changes: Any) -> Self:
        """The same with some other values."""
        return replace(self, **changes)


def square(image_size: int | Sequence[int]) -> int:
    """The side of square pictures, from a number or from [3,H,W] as in older configurations."""
    if isinstance(image_size, int):
        return image_size
    sides = list(image_size)[-2:]
    if len(image_size) not in (2, 3) or sides[0] != sides[1] or (len(image_size) == 3 and image_size[0] != 3):
        raise ModelError(f"image_size is {list(image_size)}, but [3, n, n] or a number is needed: models take squares")
    return int(sides[0])


def _fits(name: str, value: Any) -> bool:
    if name in ("normalize", "freeze_encoder"):
        return type(value) is bool
    if name in ("image_size", "width", "num_spatial_blocks"):
        return type(value) is int
    if name == "hidden_dim":
        return value is None or type(value) is int
    if name == "dropout":
        return type(value) in (int, float)
    if name == "cameras":
        return isinstance(value, list | tuple) and all(isinstance(camera, str) for camera in value)
    if name == "crop":
        return isinstance(value, Mapping) and all(
            isinstance(box, list | tuple) and len(box) == 4 and all(type(side) is int for side in box)
            for box in value.values()
        )
    if name == "options":
        return isinstance(value, Mapping)
    return isinstance(value, str)
