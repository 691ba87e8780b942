"""The ResNet family in plain torch, with torchvision's parameter names: its state dicts load as they are.

Two things can differ from torchvision, because SERL's ImageNet ResNet10 differs in them: `norm="group"` puts
GroupNorm (4 groups) where torchvision has BatchNorm, and `padding="same"` pads what has a stride of 2 as XLA does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from referee.errors import RefereeError

Norm = Literal["batch", "group"]
Padding = Literal["torch", "same"]
GROUPS = 4


@dataclass(frozen=True)
class Layout:
    """What makes one ResNet of the family: blocks per stage, whether they are bottlenecks, channels at first."""

    blocks: tuple[int, int, int, int]
    bottleneck: bool
    width: int = 64
    """Channels of the first layer; all others are multiples of it."""


DEFAULT_ARCH = "resnet10_small"
"""Where nobody names one: small, and enough for one task seen by fixed cameras."""
LAYOUTS = {
    "resnet10": Layout((1, 1, 1, 1), bottleneck=False),
    "resnet18": Layout((2, 2, 2, 2), bottleneck=False),
    "resnet34": Layout((3, 4, 6, 3), bottleneck=False),
    "resnet50": Layout((3, 4, 6, 3), bottleneck=True),
    "resnet101": Layout((3, 4, 23, 3), bottleneck=True),
    "resnet152": Layout((3, 8, 36, 3), bottleneck=True),
    # Names of our own: a quarter of the channels, a sixteenth of the parameters.
    "resnet10_small": Layout((1, 1, 1, 1), bottleneck=False, width=16),
    "resnet18_small": Layout((2, 2, 2, 2), bottleneck=False, width=16),
}


class Conv(nn.Conv2d):
    """A convolution without bias that keeps the size, or halves it; `padding="same"` puts the odd pixel last."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, padding: Padding = "torch") -> None:
        super().__init__(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        self.uneven = padding == "same" and stride == 2 and kernel == 3

    def forward(self, x: Tensor) -> Tensor:
        """f32[n,C,H,W] → f32[n,C',H',W']"""
        if self.uneven:
            return F.conv2d(F.pad(x, uneven_padding(x)), self.weight, self.bias, self.stride)
        return super().forward(x)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a way around them."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int, norm: Norm, padding: Padding) -> None:
        super().__init__()
        self.conv1 = Conv(inputs, planes, 3, stride, padding)
        self.bn1 = normalisation(norm, planes)
        self.conv2 = Conv(planes, planes, 3)
        self.bn2 = normalisation(norm, planes)
        self.downsample = _downsample(inputs, planes, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        """f32[n,C,H,W] → f32[n,planes,H/stride,W/stride]"""
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += x if self.downsample is None else self.downsample(x)
        return F.relu(y, inplace=True)


class Bottleneck(nn.Module):
    """A 3×3 convolution between two 1×1, and a way around them; the stride is in the middle, as in torchvision."""

    expansion = 4

    def __init__(self, inputs: int, planes: int, stride: int, norm: Norm, padding: Padding) -> None:
        super().__init__()
        self.conv1 = Conv(inputs, planes, 1)
        self.bn1 = normalisation(norm, planes)
        self.conv2 = Conv(planes, planes, 3, stride, padding)
        self.bn2 = normalisation(norm, planes)
        self.conv3 = Conv(planes, planes * self.expansion, 1)
        self.bn3 = normalisation(norm, planes * self.expansion)
        self.downsample = _downsample(inputs, planes * self.expansion, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        """f32[n,C,H,W] → f32[n,4·planes,H/stride,W/stride]"""
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return F.relu(y, inplace=True)


class ResNet(nn.Module):
    """Images to a feature map, or to `num_classes` logits where there is a last layer `fc`.

    width: channels of the first layer; all others are multiples of it. None = the architecture's own.
    """

    def __init__(
        self,
        arch: str,
        *,
        width: int | None = None,
        norm: Norm = "batch",
        padding: Padding = "torch",
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        layout = layout_named(arch)
        width = layout.width if width is None else width
        if width < 1 or (norm == "group" and width % GROUPS):
            raise RefereeError(f"width is {width}, but a positive number that {GROUPS} divides is needed")
        self.arch, self.width, self.norm, self.padding = arch, width, norm, padding
        block = Bottleneck if layout.bottleneck else BasicBlock
        self.conv1 = Conv(3, width, 7, 2)
        self.bn1 = normalisation(norm, width)
        channels = width
        for stage, count in enumerate(layout.blocks):
            planes = width << stage
            blocks: list[nn.Module] = []
            for number in range(count):
                stride = 2 if stage and not number else 1
                blocks.append(block(channels, planes, stride, norm, padding))
                channels = planes * block.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.channels = channels
        """Of the feature map."""
        self.fc = None if num_classes is None else nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, images: Tensor, stages: int = 4) -> Tensor:
        """f32[n,3,H,W] → f32[n,C,H/32,W/32]; after fewer stages, a larger map of fewer channels."""
        return self.maps(images, stages)[-1]

    def maps(self, images: Tensor, stages: int = 4) -> list[Tensor]:
        """What each of the first stages gives."""
        x = self.bn1(self.conv1(images))
        # The order is free. Here a quarter is left to cut off after the pool; graphs fuse a ReLU with its convolution.
        x = self.pool(F.relu(x)) if torch.onnx.is_in_onnx_export() else F.relu(self.pool(x), inplace=True)
        found = []
        for stage in self.stages()[:stages]:
            x = stage(x)
            found.append(x)
        return found

    def pool(self, x: Tensor) -> Tensor:
        """The largest of each 3×3 pixels, every second one; below 0 nothing counts, so zeros may surround them."""
        if self.padding == "same":
            return F.max_pool2d(F.pad(x, uneven_padding(x)), 3, 2)
        return F.max_pool2d(x, 3, 2, 1)

    def stages(self) -> list[nn.Sequential]:
        """layer1 to layer4"""
        return [self.layer1, self.layer2, self.layer3, self.layer4]  # type: ignore[list-item]

    def forward(self, images: Tensor) -> Tensor:
        """f32[n,3,H,W] → logits f32[n,num_classes], or the feature map where there is no `fc`."""
        x = self.features(images)
        return x if self.fc is None else self.fc(x.mean((2, 3)))


def map_size(image_size: int) -> int:
    """Height and width of the feature map for images of that size."""
    for _ in range(5):
        image_size = (image_size + 1) // 2
    return image_size


def layout_named(arch: str) -> Layout:
    """The layout, or one line that names those there are."""
    if arch not in LAYOUTS:
        raise RefereeError(f"arch {arch!r} is unknown: use one of {', '.join(LAYOUTS)}")
    return LAYOUTS[arch]


def arch_named(blocks: tuple[int, ...], bottleneck: bool, width: int) -> str | None:
    """The name of a net: of its layout and width where there is one, else of its layout alone; None if unknown."""
    names = [name for name, each in LAYOUTS.items() if (each.blocks, each.bottleneck) == (blocks, bottleneck)]
    return next((name for name in names if LAYOUTS[name].width == width), names[0] if names else None)


def normalisation(norm: Norm, channels: int) -> nn.Module:
    """A layer that normalises channels."""
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(GROUPS, channels)


def uneven_padding(x: Tensor) -> tuple[int, int, int, int]:
    """Left, right, top, bottom of XLA's SAME for 3×3 with stride 2: a pixel at the end, and before an odd size."""
    height, width = x.shape[-2:]
    return width % 2, 1, height % 2, 1


def _downsample(inputs: int, outputs: int, stride: int, norm: Norm) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(Conv(inputs, outputs, 1, stride), normalisation(norm, outputs))
