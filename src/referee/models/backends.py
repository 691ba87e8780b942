"""Where the encoder runs: torch, torch.compile, onnxruntime or OpenVINO, in fp32 or int8.

Preparation and head are the model's own everywhere; only `encode_views`, which takes the time, runs elsewhere. A back
end is compared with the model on real frames before it is used, and is not used where it says something else.
"""

from __future__ import annotations

import copy
import ctypes
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from referee import cpu
from referee.errors import MissingDependency
from referee.models.contract import (
    ModelError,
    RewardModel,
    check_shape,
    evaluating,
    joined,
    probability_of,
    split_seen,
)
from referee.models.onnx_graph import INPUT, encoder_graph, int8_graph, rows
from referee.models.resnet import ResNet
from referee.optional import require

_log = logging.getLogger(__name__)
BACKENDS = ("torch", "compile", "onnxruntime", "openvino")
PREFERRED = (("openvino", True), ("openvino", False), ("onnxruntime", False))
"""Back ends and whether in int8, the fastest first, as measured in docs/numbers.md; `auto` takes the first that can."""
BOUNDS = {"fp32": 1e-3, "int8": 0.05}
"""The largest difference in probability from the model itself, on the frames compared, at which a back end is used."""
MICRO_BATCH = {"torch": 16, "compile": 32, "onnxruntime": 16, "openvino": 32, "openvino int8": 64}
"""Pictures that go through the encoder at once: the activations of more do not stay in a core's cache."""
Encode = Callable[[Tensor, int], Tensor]
"""Prepared frames f32[n,V,3,S,S], and how many threads there are → features f32[n,d], as `RewardModel.encode`."""


class Scorer:
    """A model whose encoder runs on a back end; gives the same logits up to the stated bound, faster."""

    def __init__(
        self, model: RewardModel, encode: Encode, *, backend: str, int8: bool = False, threads: int | None = None
    ) -> None:
        """threads: of onnxruntime and OpenVINO; as many as torch has while they score, unless given."""
        self.model, self.backend, self.int8, self._threads = model, backend, int8, threads
        self.difference = 0.0
        """The largest difference in probability from the model itself, where they were compared."""
        self._encode = encode
        self._frames = frames_at_once(model, self.name)

    @property
    def name(self) -> str:
        """For logs and tables."""
        return f"{self.backend} int8" if self.int8 else self.backend

    def logits(self, images: np.ndarray | Tensor) -> np.ndarray:
        """f32[n] of frames uint8[n,V,H,W,3], or float in 0..1."""
        return np.concatenate([np.empty(0, np.float32), *self._by_pieces(self.model.head, images)])

    def seen(self, images: np.ndarray | Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Logits and summaries, see `RewardModel.seen`."""
        return split_seen(self._by_pieces(lambda features: joined(self.model, features), images))

    def _by_pieces(self, run: Callable[[Tensor], Tensor], images: np.ndarray | Tensor) -> list[np.ndarray]:
        """What `run` makes of features, some frames at a time."""
        check_shape(images, self.model.spec)
        alone = self.backend in ("onnxruntime", "openvino")
        threads = self._threads or torch.get_num_threads()
        with evaluating(self.model), _one_thread_of_torch() if alone else nullcontext():
            return [
                run(self._encode(self.model.prepare(images[start : start + self._frames]), threads)).cpu().numpy()
                for start in range(0, len(images), self._frames)
            ]


@contextmanager
def _one_thread_of_torch() -> Iterator[None]:
    """Torch's threads wait by spinning, and would keep those of another library from the cores meanwhile."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def choose(
    model: RewardModel,
    frames: np.ndarray,
    *,
    backend: str = "torch",
    int8: bool = False,
    threads: int | None = None,
    temperature: float = 1.0,
) -> Scorer:
    """A scorer on the back end asked for; on torch, with a notice, where that one says something else.

    frames: real frames uint8[n,V,H,W,3], to compare on and to calibrate int8 with.
    threads: of onnxruntime and OpenVINO; as many as torch has while they score, unless given.
    """
    if len(frames) == 0:
        raise ModelError(f"the {backend} back end needs real frames to be compared on")
    scorer = make(model, frames, backend=backend, int8=int8, threads=threads)
    scorer.difference = difference(scorer, frames, temperature)
    bound = BOUNDS["int8" if int8 else "fp32"]
    if scorer.difference <= bound:
        return scorer
    _log.warning(
        "%s differs from the model by up to %.4f in probability on %d frames, and at most %.4f is allowed: "
        "scoring with torch instead",
        scorer.name, scorer.difference, len(frames), bound,
    )  # fmt: skip
    return Scorer(model, _by_torch(model), backend="torch")


def fastest(model: RewardModel, frames: np.ndarray, *, threads: int | None = None, temperature: float = 1.0) -> Scorer:
    """A scorer on the first of `PREFERRED` that is installed and says what the model says; else on torch.

    No clock decides, so that a run that is resumed scores as before.
    """
    for backend, int8 in PREFERRED if len(frames) else ():
        try:
            scorer = make(model, frames, backend=backend, int8=int8, threads=threads)
        except MissingDependency:
            continue
        except ModelError:  # it has no graph
            break
        scorer.difference = difference(scorer, frames, temperature)
        if scorer.difference <= BOUNDS["int8" if int8 else "fp32"]:
            return scorer
    return Scorer(model, _by_torch(folded(model)), backend="torch")


def make(
    model: RewardModel, frames: np.ndarray, *, backend: str, int8: bool = False, threads: int | None = None
) -> Scorer:
    """A scorer on a back end, not compared yet."""
    if backend not in BACKENDS:
        raise ModelError(f"backend {backend!r} is unknown: use one of {', '.join(BACKENDS)}")
    if int8 and backend in ("torch", "compile"):
        raise ModelError(f"backend {backend} has no int8: use openvino or onnxruntime")
    encode: Encode
    if backend == "torch":
        encode = _by_torch(folded(model))
    elif backend == "compile":
        encode = _compiled(model)
    else:
        encode = {"onnxruntime": _onnxruntime, "openvino": _openvino}[backend](model, frames, int8)
    return Scorer(model, encode, backend=backend, int8=int8, threads=threads)


def difference(scorer: Scorer, frames: np.ndarray, temperature: float = 1.0) -> float:
    """The largest difference in probability between a scorer and its model; NaN counts as the greatest."""
    ours = probability_of(scorer.model.logits(frames), temperature)
    theirs = probability_of(scorer.logits(frames), temperature)
    gap = np.abs(ours - theirs).max()
    return float(gap) if np.isfinite(gap) else 1.0


def frames_at_once(model: RewardModel, name: str) -> int:
    """Frames of all cameras in one micro-batch of a scorer of that name."""
    pictures = MICRO_BATCH.get(name) or MICRO_BATCH[name.removesuffix(" int8")]
    return max(1, pictures // len(model.spec.cameras))


def folded(model: RewardModel) -> RewardModel:
    """A copy for scoring alone, with every BatchNorm of its ResNet made part of the convolution before it."""
    twin = copy.deepcopy(model).eval().requires_grad_(False)
    if not isinstance(getattr(twin, "encoder", None), ResNet):
        return twin
    for module in [twin.encoder, *twin.encoder.modules()]:
        for number in (1, 2, 3):
            _fold(module, f"conv{number}", f"bn{number}")
        if isinstance(getattr(module, "downsample", None), nn.Sequential):
            _fold(module.downsample, "0", "1")
    return twin


def _fold(parent: Any, conv: str, norm: str) -> None:
    layer, following = getattr(parent, conv, None), getattr(parent, norm, None)
    if isinstance(layer, nn.Conv2d) and isinstance(following, nn.BatchNorm2d):
        fused = fuse_conv_bn_eval(layer, following).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        setattr(parent, conv, fused)
        setattr(parent, norm, nn.Identity())


def _by_torch(model: RewardModel) -> Encode:
    return lambda prepared, threads: model.encode(prepared)


def _compiled(model: RewardModel) -> Encode:
    """torch.compile for one batch size, the first call of which takes long; what is less than a batch runs eagerly."""
    size, plain = frames_at_once(model, "compile"), folded(model).encode
    run = torch.compile(plain, dynamic=False)
    return lambda prepared, threads: run(prepared) if len(prepared) == size else plain(prepared)


def _graph(model: RewardModel, frames: np.ndarray, int8: bool) -> bytes:
    if model.spec.precision != "fp32":
        raise ModelError(f"a model of precision {model.spec.precision} runs on torch or compile only")
    return int8_graph(model, frames, narrow=not cpu.has_vnni()) if int8 else encoder_graph(model)


def _onnxruntime(model: RewardModel, frames: np.ndarray, int8: bool) -> Encode:
    runtime = require("onnxruntime", extra="fast", what="backend onnxruntime")
    graph = _graph(model, frames, int8)

    @cache
    def session(threads: int) -> Any:
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        return runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def encode(seen: Tensor, threads: int) -> Tensor:
        (found,) = session(threads).run(None, {INPUT: rows(seen)})
        return torch.from_numpy(found).reshape(len(seen), -1)

    return encode


def _openvino(model: RewardModel, frames: np.ndarray, int8: bool) -> Encode:
    cpu.cap_if_needed()
    openvino = require("openvino", extra="fast", what="backend openvino")
    requests = _Requests(openvino.Core(), _graph(model, frames, int8))

    def encode(seen: Tensor, threads: int) -> Tensor:
        images = rows(seen)
        size = 1 << (len(images) - 1).bit_length()
        if size > len(images):
            images = np.concatenate([images, np.zeros((size - len(images), *images.shape[1:]), np.float32)])
        features = requests.of(threads, images.shape).infer({0: images}, share_inputs=True)[0]
        used = len(seen) * seen.shape[1]
        return torch.from_numpy(np.array(features[:used])).reshape(len(seen), -1)

    return encode


class _Requests:
    """A graph of OpenVINO, compiled for numbers of threads and sizes; those are few, since they are powers of two."""

    def __init__(self, core: Any, graph: bytes) -> None:
        self._core, self._graph = core, graph
        self._ready: dict[tuple[int, tuple[int, ...]], Any] = {}

    def of(self, threads: int, shape: tuple[int, ...]) -> Any:
        """For so many threads and this shape of the input: a fixed size is faster."""
        if (threads, shape) not in self._ready:
            options = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
            with _keeping_signal_stack():
                network = self._core.read_model(self._graph)
                network.reshape({0: list(shape)})
                self._ready[threads, shape] = self._core.compile_model(network, "CPU", options).create_infer_request()
        return self._ready[threads, shape]


class _SignalStack(ctypes.Structure):
    """`stack_t` of Linux."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def _keeping_signal_stack() -> Iterator[None]:
    """OpenVINO gives the thread a stack for signals, and frees it while it is still set: the next one kills us."""
    if sys.platform != "linux":
        yield
        return
    libc, own = ctypes.CDLL(None), _SignalStack()
    libc.sigaltstack(None, ctypes.byref(own))
    try:
        yield
    finally:
        libc.sigaltstack(ctypes.byref(own), None)
