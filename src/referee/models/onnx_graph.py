"""A ResNet as an ONNX graph, written node by node: norms folded into convolutions, int8 where asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from referee.episodes.optional import require
from referee.models.resnet import GROUPS, BasicBlock, Bottleneck, ResNet

OPSET, IR_VERSION = 17, 9
INPUT = "images"
BORDER = 3
"""Pixels around a picture that the first convolution sees; graphs of int8 get them with the picture."""
Ranges = dict[str, tuple[float, float]]
"""The values that a tensor of the graph takes: the lowest and the highest."""
Colours = tuple[Sequence[float], Sequence[float]]


def encoder_graph(
    encoder: ResNet,
    image_size: int,
    *,
    pooled: bool,
    ranges: Ranges | None = None,
    colours: Colours = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    narrow: bool = False,
    sums: bool = True,
) -> bytes:
    """The graph f32[n,S,S,3] → f32[n,C] (`pooled`) or f32[n,C,h,w], as bytes of an ONNX file.

    ranges: of all activations, from `observe`; with them the convolutions are int8, and the input is pixels with
        their border (`bordered`), uint8[n,S+6,S+6,3].
    colours: the mean and the deviation by which pixels in 0..1 are normalised; part of the weights where int8.
    narrow: weights of 7 bits, for CPUs whose int8 products overflow 16 bits (x86 without VNNI).
    sums: whether what the two ways of a block give is quantised before it is added; onnxruntime needs it.
    """
    graph = _Graph(ranges, colours, narrow, sums)
    x = graph.pixels(graph.node("Transpose", INPUT, perm=[0, 3, 1, 2]))
    for step, name, module in walk(encoder):
        x = graph.add(step, name, module, x, encoder)
    if pooled:
        x = graph.node("ReduceMean", x, axes=[2, 3], keepdims=0)
    return graph.finish(x, image_size, encoder.channels, pooled)


def walk(encoder: ResNet) -> Iterator[tuple[str, str, Any]]:
    """What a ResNet does, step by step: (`stem` | `block`, name, module)."""
    yield "stem", "stem", encoder
    for stage, blocks in enumerate(encoder.stages()):
        for number, block in enumerate(blocks):
            yield "block", f"layer{stage + 1}.{number}", block


def observe(encoder: ResNet, batches: Sequence[Tensor]) -> Ranges:
    """The ranges of all activations that `encoder_graph` names, over prepared pictures f32[n,3,S,S]."""
    found: Ranges = {}

    def see(name: str, value: Tensor) -> None:
        low, high = float(value.min()), float(value.max())
        before = found.get(name, (low, high))
        found[name] = (min(low, before[0]), max(high, before[1]))

    with torch.inference_mode():
        for images in batches:
            x = torch.relu(encoder.bn1(encoder.conv1(images)))
            see("stem", x)
            x = encoder.pool(x)
            for _, name, block in list(walk(encoder))[1:]:
                y = x
                chain = _chain(block)
                for number, (conv, norm) in enumerate(chain):
                    y = norm(conv(y))
                    y = y if number == len(chain) - 1 else torch.relu(y)
                    see(f"{name}.conv{number + 1}", y)
                if block.downsample is not None:
                    x = block.downsample(x)
                    see(f"{name}.downsample", x)
                x = torch.relu(x + y)
                see(name, x)
    return found


def bordered(pixels: np.ndarray, colours: Colours) -> np.ndarray:
    """Pictures uint8[n,S,S,3] in a frame of the mean colour, which is what padding with zeros is once normalised."""
    count, height, width = pixels.shape[:3]
    found = np.empty((count, height + 2 * BORDER, width + 2 * BORDER, 3), np.uint8)
    colour = np.rint(255 * np.asarray(colours[0])).astype(np.uint8)
    found[:, :BORDER], found[:, -BORDER:] = colour, colour
    found[:, :, :BORDER], found[:, :, -BORDER:] = colour, colour
    found[:, BORDER:-BORDER, BORDER:-BORDER] = pixels
    return found


def _chain(block: BasicBlock | Bottleneck) -> list[tuple[nn.Conv2d, nn.Module]]:
    pairs: list[tuple[nn.Conv2d, nn.Module]] = [(block.conv1, block.bn1), (block.conv2, block.bn2)]
    return [*pairs, (block.conv3, block.bn3)] if isinstance(block, Bottleneck) else pairs


class _Graph:
    """Nodes and constants so far."""

    def __init__(self, ranges: Ranges | None, colours: Colours, narrow: bool, sums: bool) -> None:
        self.onnx = require("onnx", extra="fast", what="the onnxruntime or openvino back end")
        self.ranges, self.colours, self.narrow, self.sums = ranges, colours, narrow, sums
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.scales: dict[str, np.float32] = {}

    def add(self, step: str, name: str, module: Any, x: str, encoder: ResNet) -> str:
        """One step of `walk`."""
        if step == "stem":
            y = self.node("Relu", self.conv(x, module.conv1, module.bn1, first=True), name="stem")
            # The largest of quantised numbers is one of them: it needs no range of its own.
            uneven = encoder.padding == "same"
            y = self.quantised(y)
            return self.pool(y, uneven)
        y = x
        chain = _chain(module)
        for number, (conv, norm) in enumerate(chain):
            y = self.conv(y, conv, norm)
            if number < len(chain) - 1:
                y = self.quantised(self.node("Relu", y), f"{name}.conv{number + 1}")
        y = self.quantised(y, f"{name}.conv{len(chain)}") if self.sums else y
        if module.downsample is not None:
            conv, norm = module.downsample
            x = self.conv(x, conv, norm)
            x = self.quantised(x, f"{name}.downsample") if self.sums else x
        y = self.node("Relu", self.node("Add", y, x))
        # What is averaged or weighed next, and not convolved, stays as it is.
        return y if module is encoder.stages()[-1][-1] else self.quantised(y, name)

    def pixels(self, x: str) -> str:
        """The input: of int8 graphs uint8, which means colours in 0..1."""
        if self.ranges is None:
            return x
        scale, zero = np.array(1 / 255, np.float32), self.constant(np.array(0, np.uint8))
        step = self.constant(scale)
        x = self.node("Mul", self.node("Cast", x, to=self.onnx.TensorProto.FLOAT), step)
        y = self.node("DequantizeLinear", self.node("QuantizeLinear", x, step, zero), step, zero)
        self.scales[y] = np.float32(scale)
        return y

    def conv(self, x: str, conv: nn.Conv2d, norm: nn.Module, first: bool = False) -> str:
        """A convolution and its norm; BatchNorm becomes part of the weights, GroupNorm follows as it is."""
        weight: Tensor = conv.weight.detach()
        bias: Tensor | None = None
        if isinstance(norm, nn.BatchNorm2d):
            assert norm.running_mean is not None and norm.running_var is not None
            weight, bias = fuse_conv_bn_weights(
                conv.weight, None, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
            )
        kernel, stride = conv.kernel_size[0], conv.stride[0]
        pads = [kernel // 2] * 4
        off: np.ndarray = np.zeros(1)
        if first and self.ranges is not None:
            off, std = (np.asarray(values).reshape(1, 3, 1, 1) for values in self.colours)
            weight = (weight.detach() / torch.from_numpy(std)).float()
            pads = [0] * 4
        options: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2}
        if getattr(conv, "uneven", False):
            options["auto_pad"] = "SAME_UPPER"
        else:
            options["pads"] = pads
        inputs = [x, *self.weights(x, weight.detach(), None if bias is None else bias.detach(), off)]
        y = self.node("Conv", *inputs, **options)
        return y if isinstance(norm, nn.BatchNorm2d) else self.group_norm(y, norm)

    def weights(self, x: str, weight: Tensor, bias: Tensor | None, off: np.ndarray) -> list[str]:
        """Names of a convolution's weight and bias; int8 with a scale per channel where the input is quantised.

        off: to be taken from the input; it becomes part of the bias, by the weights as they are once rounded.
        """
        if x not in self.scales:
            return [self.constant(weight.numpy())] + ([] if bias is None else [self.constant(bias.numpy())])
        top = 63 if self.narrow else 127
        scale = np.maximum(weight.abs().amax((1, 2, 3)).numpy() / top, 1e-12).astype(np.float32)
        whole = np.rint(weight.numpy() / scale[:, None, None, None]).astype(np.int8)
        zero = self.constant(np.zeros(len(scale), np.int8))
        names = [self.node("DequantizeLinear", self.constant(whole), self.constant(scale), zero, axis=0)]
        if bias is not None or off.any():
            shift = (whole * (scale[:, None, None, None] * off)).sum((1, 2, 3))
            wanted = (0.0 if bias is None else bias.numpy()) - shift
            fine = (scale * self.scales[x]).astype(np.float32)
            number = np.clip(np.rint(wanted / fine), -(2.0**31) + 1, 2.0**31 - 1).astype(np.int32)
            none = self.constant(np.zeros(len(scale), np.int32))
            names.append(self.node("DequantizeLinear", self.constant(number), self.constant(fine), none, axis=0))
        return names

    def group_norm(self, x: str, norm: nn.Module) -> str:
        assert isinstance(norm, nn.GroupNorm)
        shape = self.node("Shape", x)
        flat = self.node("Reshape", x, self.constant(np.array([0, GROUPS, -1], np.int64)))
        ones, zeros = self.constant(np.ones(GROUPS, np.float32)), self.constant(np.zeros(GROUPS, np.float32))
        y = self.node("InstanceNormalization", flat, ones, zeros, epsilon=norm.eps)
        y = self.node("Reshape", y, shape)
        weight, bias = (each.detach().numpy().reshape(1, -1, 1, 1) for each in (norm.weight, norm.bias))
        return self.node("Add", self.node("Mul", y, self.constant(weight)), self.constant(bias))

    def pool(self, x: str, uneven: bool) -> str:
        padding: dict[str, Any] = {"auto_pad": "SAME_UPPER"} if uneven else {"pads": [1, 1, 1, 1]}
        y = self.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], **padding)
        return y if x not in self.scales else self.quantised(y, "stem")

    def quantised(self, x: str, name: str = "") -> str:
        """The tensor through 8 bits, where ranges are known."""
        if self.ranges is None:
            return x
        low, high = self.ranges[name or x]
        low, high = min(low, 0.0), max(high, 0.0)
        scale = np.float32(max(high - low, 1e-6) / 255)
        zero = np.uint8(np.clip(round(-low / float(scale)), 0, 255))
        step, offset = self.constant(np.array(scale)), self.constant(np.array(zero))
        y = self.node("DequantizeLinear", self.node("QuantizeLinear", x, step, offset), step, offset)
        self.scales[y] = scale
        return y

    def node(self, kind: str, *inputs: str, name: str = "", **options: Any) -> str:
        name = name or f"{kind}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [name], name=name, **options))
        return name

    def constant(self, value: np.ndarray) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.array(value, order="C"), name))
        return name

    def finish(self, output: str, image_size: int, channels: int, pooled: bool) -> bytes:
        helper, kind = self.onnx.helper, self.onnx.TensorProto.FLOAT
        side = ["h", "w"]
        outer = image_size + (0 if self.ranges is None else 2 * BORDER)
        pixels = kind if self.ranges is None else self.onnx.TensorProto.UINT8
        graph = helper.make_graph(
            self.nodes,
            "encoder",
            [helper.make_tensor_value_info(INPUT, pixels, ["n", outer, outer, 3])],
            [helper.make_tensor_value_info(output, kind, ["n", channels, *([] if pooled else side)])],
            self.constants,
        )
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="referee")
        self.onnx.checker.check_model(model)
        return bytes(model.SerializeToString())
