"""A model's encoder as an ONNX graph: exported by torch, and made int8 by onnxruntime's static quantisation."""

from __future__ import annotations

import contextlib
import copy
import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from referee.models.contract import ModelError, RewardModel
from referee.optional import require

OPSET = 17
INPUT, OUTPUT = "images", "features"
QUANTISED = ["Conv", "Gemm", "MatMul", "MaxPool", "Add", "Relu", "Clip"]
"""The operators of int8 graphs that compute in 8 bits; norms and averages stay in fp32."""
OBSERVED = 8
"""Frames at a time while the ranges of activations are observed."""


def encoder_graph(model: RewardModel) -> bytes:
    """The graph of `encode_views` on prepared pictures as they lie in memory: f32[n,S,S,3] → f32[n,…], any n."""
    with tempfile.TemporaryDirectory() as folder:
        return _export(model, Path(folder)).read_bytes()


def int8_graph(model: RewardModel, frames: np.ndarray, *, narrow: bool = False) -> bytes:
    """The same graph with weights and activations of 8 bits.

    frames: real frames uint8[n,V,H,W,3], from which the ranges of activations are taken.
    narrow: weights of 7 bits, for CPUs whose int8 products overflow 16 bits (x86 without VNNI).
    """
    quantization = require("onnxruntime.quantization", extra="fast", what="int8 scoring")
    shapes = require("onnxruntime.quantization.shape_inference", extra="fast", what="int8 scoring")
    starts = range(0, len(frames), OBSERVED)
    with tempfile.TemporaryDirectory() as folder:
        shaped, small = Path(folder) / "shaped.onnx", Path(folder) / "int8.onnx"
        shapes.quant_pre_process(
            _export(model, Path(folder)), shaped, skip_optimization=True, skip_symbolic_shape=True
        )  # else the quantiser logs that something is missing
        with _unlogged():
            quantization.quantize_static(
                shaped,
                small,
                _Batches(rows(model.prepare(frames[start : start + OBSERVED])) for start in starts),
                quant_format=quantization.QuantFormat.QDQ,
                op_types_to_quantize=QUANTISED,
                per_channel=True,
                reduce_range=narrow,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
            )
        return small.read_bytes()


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Without what the quantiser tells the root logger: biases that convolutions share stay in fp32."""

    def ours(record: logging.LogRecord) -> bool:
        return record.module != "qdq_quantizer"

    root = logging.getLogger()
    root.addFilter(ours)
    try:
        yield
    finally:
        root.removeFilter(ours)


def rows(prepared: Tensor) -> np.ndarray:
    """What a graph takes: f32[n·V,S,S,3] of prepared frames f32[n,V,3,S,S], without a copy."""
    return np.ascontiguousarray(prepared.flatten(0, 1).permute(0, 2, 3, 1).cpu().numpy())


class _Views(nn.Module):
    """A copy of a model, of which `encode_views` is called on pictures with channels last."""

    def __init__(self, model: RewardModel) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).cpu()
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        return self.model.encode_views(images.permute(0, 3, 1, 2))


class _Batches:
    """onnxruntime's `CalibrationDataReader`: one batch after the other, then None."""

    def __init__(self, batches: Iterator[np.ndarray]) -> None:
        self._batches = batches

    def get_next(self) -> dict[str, np.ndarray] | None:
        batch = next(self._batches, None)
        return None if batch is None else {INPUT: batch}


def _export(model: RewardModel, folder: Path) -> Path:
    """The file of the graph in a folder."""
    require("onnx", extra="fast", what="the onnxruntime or openvino back end")
    side, path = model.spec.image_size, folder / "exported.onnx"
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # the exporter knows attention by its parts only
    try:
        with warnings.catch_warnings(record=True) as notes:  # that it traces, and that there is a newer exporter
            warnings.simplefilter("always")
            torch.onnx.export(
                _Views(model), (torch.zeros(2, side, side, 3),), path, dynamo=False, opset_version=OPSET,
                input_names=[INPUT], output_names=[OUTPUT], dynamic_axes={INPUT: {0: "n"}, OUTPUT: {0: "n"}},
            )  # fmt: skip
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"{type(model).__name__} runs on torch or compile only: its encode_views has no ONNX graph ({reason})"
        ) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
    if any("Using len to get tensor shape" in str(each.message) for each in notes):
        raise ModelError(
            f"{type(model).__name__} runs on torch or compile only: its encode_views calls len() of a tensor, which a "
            "graph keeps as a constant; use x.shape[0]"
        )
    return path
