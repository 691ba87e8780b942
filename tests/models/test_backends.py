"""Scoring back ends: the same numbers as the model, or a notice and the model itself."""

from __future__ import annotations

import ctypes
import gc
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from referee.errors import RefereeError
from referee.models import Artifact, Calibration, ModelSpec, Reference, RewardModel, backends, build, register
from referee.models.artifact import embed
from referee.models.contract import probability_of
from referee.models.onnx_graph import encoder_graph, int8_graph

TWO = ModelSpec(arch="resnet10", width=8, hidden_dim=16, image_size=40, cameras=("front", "side"))
SPECS = {
    "resnet": TWO,
    "deep": TWO.but(arch="resnet50", cameras=("front",), image_size=64),
    "binary": TWO.but(model_type="binary_classifier", num_spatial_blocks=3, image_size=64),
    "serl": TWO.but(model_type="binary_classifier", norm="group", padding="same", image_size=64),
    "averages": TWO.but(model_type="binary_classifier", pooling="average"),
    "resized": TWO.but(resize="bilinear", image_size=33, normalize=False),
}
KINDS = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
OTHERS = pytest.mark.parametrize("backend", ["torch", "onnxruntime", "openvino"])


def trained(spec: ModelSpec) -> RewardModel:
    """A model whose norms and logits are not what they were at the start."""
    torch.manual_seed(0)
    model = build(spec).train()
    optimizer = torch.optim.AdamW(model.trainable_parameters(), lr=3e-3)
    for _ in range(4):
        optimizer.zero_grad()
        model.loss(frames(spec), torch.arange(16) % 2).backward()
        optimizer.step()
    return model.eval()


def frames(spec: ModelSpec, count: int = 16, seed: int = 0) -> np.ndarray:
    """Smooth pictures: noise alone would look the same to every network."""
    random = np.random.default_rng(seed)
    side = 48 if spec.resize == "bilinear" else spec.image_size
    coarse = torch.from_numpy(random.random((count * len(spec.cameras), 3, 6, 6)))
    smooth = nn.functional.interpolate(coarse, (side, side), mode="bicubic").clamp(0, 1)
    images = (smooth.permute(0, 2, 3, 1).numpy() * 255).astype(np.uint8)
    return images.reshape(count, len(spec.cameras), side, side, 3)


@KINDS
@OTHERS
def test_a_back_end_scores_as_the_model_does(spec: ModelSpec, backend: str) -> None:
    if backend != "torch":
        pytest.importorskip(backend)
        pytest.importorskip("onnx")
    model = trained(spec)
    fresh = frames(spec, 21, seed=1)
    expected = model.logits(fresh)
    assert np.ptp(expected) > 1e-3
    scorer = backends.choose(model, frames(spec), backend=backend, threads=1)
    assert scorer.backend == backend and scorer.difference < 1e-4
    np.testing.assert_allclose(scorer.logits(fresh), expected, atol=1e-4)
    np.testing.assert_allclose(scorer.logits(fresh.astype(np.float32) / 255), expected, atol=1e-4)
    np.testing.assert_allclose(
        np.concatenate([scorer.logits(fresh[i : i + 1]) for i in range(3)]), expected[:3], atol=1e-4
    )
    assert scorer.logits(fresh[:0]).shape == (0,)
    logits, summary = scorer.seen(fresh)
    np.testing.assert_array_equal(logits, scorer.logits(fresh))
    np.testing.assert_allclose(summary, embed(model, fresh), atol=1e-3)
    np.testing.assert_allclose(model.seen(fresh)[1], embed(model, fresh), atol=1e-6)


@pytest.mark.parametrize("kind", ["resnet", "deep", "binary", "serl"])
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_int8_is_close_to_the_model(kind: str, backend: str) -> None:
    pytest.importorskip(backend)
    model = trained(SPECS[kind])
    scorer = backends.make(model, frames(model.spec), backend=backend, int8=True, threads=1)
    fresh = frames(model.spec, 32, seed=1)
    ours, theirs = model.logits(fresh), scorer.logits(fresh)
    assert scorer.int8 and not np.array_equal(ours, theirs)
    gap = np.abs(probability_of(ours) - probability_of(theirs))
    assert gap.max() < 0.1 and gap.mean() < 0.03
    assert np.corrcoef(ours, theirs)[0, 1] > 0.9  # 0.948 for 50 layers where weights have 7 bits (no VNNI)


def test_int8_weights_and_activations_are_in_the_graph() -> None:
    onnx = pytest.importorskip("onnx")
    model = trained(SPECS["resnet"])
    for narrow, top in ((False, 127), (True, 64)):  # two products of 255 and 64 fit into 16 bits
        graph = onnx.load_from_string(int8_graph(model, frames(model.spec), narrow=narrow)).graph
        known = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
        kernels = [each for each in known.values() if each.ndim == 4]
        assert len(kernels) == 12 and {each.dtype for each in kernels} == {np.dtype(np.int8)}
        assert max(np.abs(each.astype(int)).max() for each in kernels) == top
        assert not any(node.op_type == "BatchNormalization" for node in graph.node)
        made_by = {output: node.op_type for node in graph.node for output in node.output}
        inputs = {made_by[node.input[0]] for node in graph.node if node.op_type in ("Conv", "MaxPool", "Add")}
        assert inputs == {"DequantizeLinear"}


def test_a_graph_takes_any_number_of_pictures() -> None:
    onnx = pytest.importorskip("onnx")
    for graph in (encoder_graph(build(TWO)), int8_graph(build(TWO), frames(TWO))):
        found = onnx.load_from_string(graph).graph
        dims = [each.type.tensor_type.shape.dim for each in (found.input[0], found.output[0])]
        assert [each[0].dim_param for each in dims] == ["n", "n"]
        assert [each.dim_value for each in dims[0]][1:] == [40, 40, 3]


def test_a_back_end_that_says_something_else_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = trained(TWO)
    for factor, more in ((3, 1), (np.nan, 0)):

        def wrong(prepared: torch.Tensor, threads: int, factor: float = factor, more: int = more) -> torch.Tensor:
            return model.encode(prepared) * factor + more

        monkeypatch.setattr(backends, "_openvino", lambda *_, wrong=wrong: wrong)
        with caplog.at_level(logging.WARNING):
            scorer = backends.choose(model, frames(TWO), backend="openvino")
        assert scorer.backend == "torch" and "scoring with torch" in caplog.records[-1].getMessage()
        np.testing.assert_allclose(scorer.logits(frames(TWO)), model.logits(frames(TWO)), atol=1e-6)


def test_auto_takes_the_fastest_that_is_installed_and_agrees(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, fresh = trained(TWO), frames(TWO, 21, seed=1)

    def chosen(count: int = 16) -> str:
        scorer = backends.fastest(model, frames(TWO, count), threads=1)
        np.testing.assert_allclose(probability_of(scorer.logits(fresh)), probability_of(model.logits(fresh)), atol=0.1)
        return scorer.name

    assert chosen() == "openvino int8"
    np.testing.assert_array_equal(  # made twice, it scores the same to the bit
        *(backends.fastest(model, frames(TWO), threads=1).logits(fresh) for _ in range(2))
    )
    monkeypatch.setitem(backends.BOUNDS, "int8", 0.0)
    assert chosen() == "openvino"
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert chosen() == "onnxruntime"
    monkeypatch.setitem(backends.BOUNDS, "fp32", -1.0)
    assert chosen() == "torch"
    assert chosen(0) == "torch"
    monkeypatch.undo()
    assert backends.fastest(trained(TWO.but(precision="bf16")), frames(TWO)).name == "torch"  # has no graph
    assert not caplog.records  # none of it is a fault


@pytest.mark.skipif(sys.platform != "linux", reason="signal stacks of Linux")
def test_openvino_leaves_the_thread_its_signal_stack() -> None:
    """A stack that is freed while it is set kills the process at its next signal: a child that ends, or Ctrl-C."""
    pytest.importorskip("openvino")

    class Stack(ctypes.Structure):
        _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))

    def now() -> tuple[object, ...]:
        stack = Stack()
        ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack))
        return stack.start, stack.flags, stack.size

    before, model = now(), trained(TWO)
    scorers = [backends.choose(model, frames(TWO), backend="openvino", threads=threads) for threads in (1, 2)]
    assert now() == before
    scorers.pop(0)
    gc.collect()
    assert now() == before
    scorers.clear()
    gc.collect()
    assert now() == before


def test_compile_is_for_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained(TWO)
    seen = []

    def compiled(function: object, **options: object) -> object:
        def run(prepared: torch.Tensor) -> torch.Tensor:
            seen.append(len(prepared))
            return function(prepared)  # type: ignore[operator]

        return run

    monkeypatch.setattr(torch, "compile", compiled)
    scorer = backends.choose(model, frames(TWO), backend="compile")
    np.testing.assert_allclose(scorer.logits(frames(TWO, 21)), model.logits(frames(TWO, 21)), atol=1e-5)
    assert set(seen) == {16}  # frames of two cameras: 32 pictures


@pytest.mark.slow
def test_compile_compiles() -> None:
    model = trained(TWO)
    scorer = backends.choose(model, frames(TWO), backend="compile")
    assert scorer.backend == "compile"
    np.testing.assert_allclose(scorer.logits(frames(TWO, 21)), model.logits(frames(TWO, 21)), atol=1e-4)


def test_a_model_of_bf16_keeps_its_precision_on_torch() -> None:
    model = trained(TWO.but(precision="bf16"))
    scorer = backends.choose(model, frames(TWO), backend="torch")
    assert scorer.difference < 0.01
    with pytest.raises(RefereeError, match="bf16"):
        backends.choose(model, frames(TWO), backend="onnxruntime")


def test_folding_leaves_the_model_alone_and_no_norm_in_the_copy() -> None:
    model = trained(SPECS["deep"])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    twin = backends.folded(model)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in twin.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for uneven in (SPECS["serl"], TWO.but(padding="same")):
        model = trained(uneven)
        np.testing.assert_allclose(
            backends.folded(model).logits(frames(uneven)), model.logits(frames(uneven)), atol=1e-5
        )


def test_what_a_back_end_cannot_do_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained(TWO)
    for options, words in (
        ({"backend": "tensorrt"}, "openvino"),
        ({"backend": "torch", "int8": True}, "no int8"),
    ):
        with pytest.raises(RefereeError, match=words):
            backends.choose(model, frames(TWO), **options)  # type: ignore[arg-type]
    with pytest.raises(RefereeError, match="needs real frames"):
        backends.choose(model, frames(TWO)[:0], backend="torch")
    for missing in ("openvino", "onnxruntime"):
        monkeypatch.setitem(sys.modules, missing, None)
        with pytest.raises(RefereeError, match=r"referee-rl\[fast\]"):
            backends.choose(model, frames(TWO), backend=missing)


@register("tests/patches")
class Patches(RewardModel):
    """An architecture of somebody else: patches, attention among them, an average; and strides, groups, GELU."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 16, 4, 4), nn.BatchNorm2d(16), nn.GELU(), nn.Conv2d(16, 16, 3, 1, 1, groups=4), nn.SiLU()
        )
        self.attention = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.last = nn.Linear(16 * len(spec.cameras), 1)

    def encode_views(self, views: torch.Tensor) -> torch.Tensor:
        patches = self.encoder(views).flatten(2).transpose(1, 2)
        return self.attention(patches).mean(1)

    def head(self, features: torch.Tensor) -> torch.Tensor:
        return self.last(features)[:, 0]


@pytest.mark.parametrize("int8", [False, True], ids=["fp32", "int8"])
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_model_of_somebody_else_runs_there_too(
    backend: str, int8: bool, recwarn: pytest.WarningsRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip(backend)
    pytest.importorskip("onnx")
    spec = TWO.but(model_type="tests/patches")
    model = trained(spec)
    scorer = backends.choose(model, frames(spec), backend=backend, int8=int8, threads=1)
    fresh = frames(spec, 21, seed=1)
    assert scorer.backend == backend and scorer.int8 == int8
    expected = model.logits(fresh)
    assert np.ptp(expected) > 1e-2
    found = scorer.logits(fresh)
    if int8:
        gap = np.abs(probability_of(expected) - probability_of(found))
        assert gap.max() < 0.1 and np.corrcoef(expected, found)[0, 1] > 0.9
    else:
        np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(scorer.logits(fresh[:1]), found[:1], atol=1e-5)
    assert not [each for each in recwarn if "onnx" in str(each.message).lower() or "trac" in str(each.message).lower()]
    assert not caplog.records


def test_a_model_that_cannot_be_exported_runs_on_torch_only() -> None:
    @register("tests/eigen")
    class Eigen(RewardModel):
        def __init__(self, spec: ModelSpec) -> None:
            super().__init__(spec)
            self.last = nn.Linear(3 * len(spec.cameras), 1)

        def encode_views(self, views: torch.Tensor) -> torch.Tensor:
            flat = views.flatten(2)
            return torch.linalg.eigvalsh(flat @ flat.transpose(1, 2))

        def head(self, features: torch.Tensor) -> torch.Tensor:
            return self.last(features)[:, 0]

    model = build(TWO.but(model_type="tests/eigen"))
    assert backends.choose(model, frames(TWO), backend="torch").difference < 1e-5
    pytest.importorskip("onnxruntime")
    with pytest.raises(RefereeError, match="Eigen runs on torch or compile only"):
        backends.choose(model, frames(TWO), backend="onnxruntime")


def test_a_number_of_pictures_that_a_graph_would_keep_is_refused() -> None:
    @register("tests/counting")
    class Counting(RewardModel):
        def __init__(self, spec: ModelSpec) -> None:
            super().__init__(spec)
            self.last = nn.Linear(3 * len(spec.cameras), 1)

        def encode_views(self, views: torch.Tensor) -> torch.Tensor:
            return views.reshape(len(views), 3, -1).mean(2)

        def head(self, features: torch.Tensor) -> torch.Tensor:
            return self.last(features)[:, 0]

    pytest.importorskip("onnxruntime")
    with pytest.raises(RefereeError, match=r"Counting .* use x\.shape\[0\]"):
        backends.choose(build(TWO.but(model_type="tests/counting")), frames(TWO), backend="onnxruntime")


@OTHERS
def test_an_artifact_brings_the_frames_that_a_back_end_is_compared_on(tmp_path: Path, backend: str) -> None:
    if backend != "torch":
        pytest.importorskip(backend)
    model = trained(TWO)
    reference = Reference.of(embed(model, frames(TWO)), frames(TWO))
    Artifact(model, Calibration(temperature=0.5), {}, reference).save(tmp_path / "model")
    loaded = Artifact.load(tmp_path / "model")
    expected = loaded.judge(frames(TWO, 5, seed=2))
    assert loaded.use(backend, threads=1).backend == backend
    found = loaded.judge(frames(TWO, 5, seed=2))
    assert found.probability is not None and expected.probability is not None
    np.testing.assert_allclose(found.probability, expected.probability, atol=1e-3)
