"""The ResNet family against torchvision's published sizes and names, and against a slow reference of our own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from referee.errors import RefereeError
from referee.models.resnet import LAYOUTS, ResNet, map_size


@pytest.mark.parametrize(
    ("arch", "parameters"),
    [  # as torchvision's documentation lists them, for 1000 classes
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
    ],
)
def test_sizes_are_torchvisions(arch: str, parameters: int) -> None:
    with torch.device("meta"):
        net = ResNet(arch, num_classes=1000)
    assert sum(each.numel() for each in net.parameters()) == parameters


def test_names_and_shapes_are_torchvisions() -> None:
    with torch.device("meta"):
        small = {name: tuple(value.shape) for name, value in ResNet("resnet18", num_classes=1000).state_dict().items()}
        large = {name: tuple(value.shape) for name, value in ResNet("resnet50", num_classes=1000).state_dict().items()}
    # 20 convolutions, 20 norms of 5 tensors, and fc.
    assert len(small) == 20 + 20 * 5 + 2
    assert len(large) == 53 + 53 * 5 + 2
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert {f"layer2.0.downsample.1.{name}" for name in norm} <= small.keys()
    assert small["conv1.weight"] == (64, 3, 7, 7)
    assert small["layer1.1.conv2.weight"] == (64, 64, 3, 3)
    assert small["layer4.0.conv1.weight"] == (512, 256, 3, 3)
    assert small["layer4.0.downsample.0.weight"] == (512, 256, 1, 1)
    assert small["fc.weight"] == (1000, 512) and small["fc.bias"] == (1000,)
    assert not any(name.startswith("layer1") and "downsample" in name for name in small)
    assert large["layer1.0.downsample.0.weight"] == (256, 64, 1, 1)
    assert large["layer1.0.conv3.weight"] == (256, 64, 1, 1)
    assert large["layer3.5.conv2.weight"] == (256, 256, 3, 3)
    assert large["fc.weight"] == (1000, 2048)


def test_resnet10_is_half_of_resnet18() -> None:
    with torch.device("meta"):
        net = ResNet("resnet10", norm="group")
    # The number that SERL's own ResNet10 has, without a head.
    assert sum(each.numel() for each in net.parameters()) == 4_905_792


@pytest.mark.parametrize(("norm", "padding"), [("batch", "torch"), ("group", "torch"), ("group", "same")])
@pytest.mark.parametrize(("arch", "pixels"), [("resnet10", 40), ("resnet18", 33), ("resnet50", 64)])
def test_outputs_equal_a_slow_reference(arch: str, pixels: int, norm: str, padding: str) -> None:
    torch.manual_seed(3)
    net = ResNet(arch, width=8, norm=norm, padding=padding, num_classes=5).double().eval()  # type: ignore[arg-type]
    _make_unusual(net)
    images = torch.rand(2, 3, pixels, pixels, dtype=torch.float64)
    expected = Slow({name: value.numpy() for name, value in net.state_dict().items()}, arch, padding)
    found = net(images).detach().numpy()
    np.testing.assert_allclose(found, expected(images.numpy()), rtol=1e-9, atol=1e-9)


def test_map_size_is_that_of_the_real_map() -> None:
    net = ResNet("resnet10", width=4).eval()
    same = ResNet("resnet10", width=4, norm="group", padding="same").eval()
    for pixels in (32, 33, 64, 65, 84, 100, 128, 224):
        image = torch.zeros(1, 3, pixels, pixels)
        side = map_size(pixels)
        assert net(image).shape == same(image).shape == (1, 32, side, side), pixels


def test_width_scales_all_channels() -> None:
    assert ResNet("resnet10", width=16).channels == 128
    assert ResNet("resnet50", width=16).channels == 512


@pytest.mark.parametrize("changes", [{"arch": "resnet11"}, {"width": 0}, {"width": 6, "norm": "group"}])
def test_what_cannot_be_built_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(RefereeError) as error:
        ResNet(**{"arch": "resnet10", **changes})  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    if "arch" in changes:
        assert all(name in str(error.value) for name in LAYOUTS)


def _make_unusual(net: nn.Module) -> None:
    """Weights of norms that are not 1 and 0, so that a mix-up shows."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d | nn.GroupNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 1.5)  # type: ignore[arg-type]


class Slow:
    """A ResNet out of a state dict in numpy, one output place at a time."""

    def __init__(self, state: dict[str, np.ndarray], arch: str, padding: str) -> None:
        self.state, self.blocks, self.padding = state, LAYOUTS[arch].blocks, padding
        self.bottleneck = LAYOUTS[arch].bottleneck

    def __call__(self, x: np.ndarray) -> np.ndarray:
        x = np.maximum(self.norm(self.conv(x, "conv1", 2, (3, 3)), "bn1"), 0)
        x = self.pool(x)
        for stage, count in enumerate(self.blocks):
            for number in range(count):
                x = self.block(x, f"layer{stage + 1}.{number}", 2 if stage and not number else 1)
        return x.mean((2, 3)) @ self.state["fc.weight"].T + self.state["fc.bias"]

    def block(self, x: np.ndarray, name: str, stride: int) -> np.ndarray:
        if self.bottleneck:
            y = np.maximum(self.norm(self.conv(x, f"{name}.conv1", 1, (0, 0)), f"{name}.bn1"), 0)
            y = np.maximum(self.norm(self.three(y, f"{name}.conv2", stride), f"{name}.bn2"), 0)
            y = self.norm(self.conv(y, f"{name}.conv3", 1, (0, 0)), f"{name}.bn3")
        else:
            y = np.maximum(self.norm(self.three(x, f"{name}.conv1", stride), f"{name}.bn1"), 0)
            y = self.norm(self.three(y, f"{name}.conv2", 1), f"{name}.bn2")
        if f"{name}.downsample.0.weight" in self.state:
            x = self.norm(self.conv(x, f"{name}.downsample.0", stride, (0, 0)), f"{name}.downsample.1")
        return np.maximum(x + y, 0)

    def three(self, x: np.ndarray, name: str, stride: int) -> np.ndarray:
        return self.conv(x, name, stride, self.pads(x.shape[-1], stride))

    def pads(self, size: int, stride: int) -> tuple[int, int]:
        """XLA's SAME: as much as ceil(size / stride) outputs need, the greater half at the end."""
        if self.padding == "torch":
            return 1, 1
        total = max((-(-size // stride) - 1) * stride + 3 - size, 0)
        return total // 2, total - total // 2

    def conv(self, x: np.ndarray, name: str, stride: int, pads: tuple[int, int]) -> np.ndarray:
        weight = self.state[f"{name}.weight"]
        kernel = weight.shape[-1]
        x = np.pad(x, ((0, 0), (0, 0), pads, pads))
        side = (x.shape[-1] - kernel) // stride + 1
        out = np.empty((len(x), len(weight), side, side))
        for row in range(side):
            for column in range(side):
                patch = x[:, :, row * stride : row * stride + kernel, column * stride : column * stride + kernel]
                out[:, :, row, column] = np.tensordot(patch, weight, ([1, 2, 3], [1, 2, 3]))
        return out

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        scale, shift = (self.state[f"{name}.{each}"][None, :, None, None] for each in ("weight", "bias"))
        if f"{name}.running_mean" in self.state:
            mean = self.state[f"{name}.running_mean"][None, :, None, None]
            var = self.state[f"{name}.running_var"][None, :, None, None]
            return (x - mean) / np.sqrt(var + 1e-5) * scale + shift
        groups = x.reshape(len(x), 4, -1)
        flat = (groups - groups.mean(2, keepdims=True)) / np.sqrt(groups.var(2, keepdims=True) + 1e-5)
        return flat.reshape(x.shape) * scale + shift

    def pool(self, x: np.ndarray) -> np.ndarray:
        low, high = self.pads(x.shape[-1], 2)
        x = np.pad(x, ((0, 0), (0, 0), (low, high), (low, high)), constant_values=-np.inf)
        side = (x.shape[-1] - 3) // 2 + 1
        out = np.empty((*x.shape[:2], side, side))
        for row in range(side):
            for column in range(side):
                out[:, :, row, column] = x[:, :, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3].max((2, 3))
        return out
