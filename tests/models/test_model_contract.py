"""What all reward models promise: input, frozen encoders, losses, views, verdicts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from referee.errors import RefereeError
from referee.models import ModelSpec, RewardModel, Verdict, build, register
from referee.models.binary_classifier import BinaryRewardClassifier, SpatialLearnedEmbeddings
from referee.models.contract import MEAN, STD, frames_of, probability_of, select_views
from referee.models.registry import names
from referee.models.spec import square

TINY = ModelSpec(arch="resnet10", width=8, hidden_dim=16, image_size=32)
TWO = TINY.but(cameras=("front", "side"))
BINARY = TWO.but(model_type="binary_classifier", num_spatial_blocks=3, image_size=64)
SPECS = {
    "resnet": TINY,
    "linear head": TINY.but(hidden_dim=None),
    "two cameras": TWO,
    "bottleneck": TINY.but(arch="resnet50"),
    "group": TINY.but(norm="group", padding="same"),
    "binary": BINARY,
    "binary of one camera": BINARY.but(cameras=("wrist",)),
    "binary of averages": BINARY.but(pooling="average"),
}
KINDS = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())


def pictures(spec: ModelSpec, count: int = 6, seed: int = 0) -> np.ndarray:
    shape = (count, len(spec.cameras), spec.image_size, spec.image_size, 3)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


# --- training ---


@KINDS
@pytest.mark.parametrize("frozen", [False, True])
def test_one_step_changes_all_that_is_trainable_and_nothing_that_is_frozen(spec: ModelSpec, frozen: bool) -> None:
    torch.manual_seed(0)
    model = build(spec.but(freeze_encoder=frozen)).train()
    assert model.training and model.encoder.training is not frozen
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.trainable_parameters(), lr=1e-2)
    model.loss(pictures(spec), torch.tensor([1, 0, 1, 0, 1, 0])).backward()
    optimizer.step()
    after = model.state_dict()
    encoder = {name for name in before if name.startswith("encoder.")}
    assert encoder and len(before) > len(encoder)
    for name in before:
        changed = not torch.equal(before[name], after[name])
        assert changed is not (frozen and name in encoder), name
    assert all(value.grad is None for name, value in model.named_parameters() if frozen and name in encoder)


def test_a_frozen_encoder_stays_in_eval_mode_and_can_be_thawed() -> None:
    model = build(TINY.but(freeze_encoder=True))
    for _ in range(2):
        model.train()
        assert model.training and not any(module.training for module in model.encoder.modules())
    model.freeze(False)
    assert model.encoder.training and len(model.trainable_parameters()) == len(list(model.parameters()))
    model.freeze()
    assert not model.encoder.training and model.spec.freeze_encoder


@KINDS
def test_head_on_features_is_forward(spec: ModelSpec) -> None:
    model = build(spec.but(freeze_encoder=True)).eval()
    prepared = model.prepare(pictures(spec))
    features = model.encode(prepared)
    assert features.ndim == 2 and features.dtype == torch.float32 and not features.requires_grad
    torch.testing.assert_close(model.head(features), model(prepared), rtol=0, atol=0)
    np.testing.assert_allclose(model.features(pictures(spec)), features.numpy(), rtol=0, atol=1e-5)
    assert model.embed(features).shape == (6, model.encoder.channels * len(spec.cameras))  # type: ignore[operator]


def test_the_loss_is_the_weighted_mean_of_cross_entropies() -> None:
    model = build(TINY).eval()
    images, labels = pictures(TINY, 3), torch.tensor([1, 0, 1])
    weights = torch.tensor([0.5, 2.0, 1.0])
    p = model.score({"main_images": images[:, 0]}).probability
    assert p is not None
    each = -np.log([p[0], 1 - p[1], p[2]])
    assert float(model.loss(images, labels).detach()) == pytest.approx(each.mean(), abs=1e-5)
    assert float(model.loss(images, labels, weights).detach()) == pytest.approx((each * [0.5, 2, 1]).mean(), abs=1e-5)


def test_scoring_leaves_the_mode_and_the_buffers_as_they_were() -> None:
    model = build(TINY).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.logits(pictures(TINY))
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_bf16_is_close_to_fp32_and_its_weights_stay_fp32() -> None:
    model = build(TINY).eval()
    half = build(TINY.but(precision="bf16")).eval()
    half.load_state_dict(model.state_dict())
    assert {value.dtype for value in half.parameters()} == {torch.float32}
    full, short = model.logits(pictures(TINY)), half.logits(pictures(TINY))
    assert short.dtype == np.float32 and not np.array_equal(full, short)
    np.testing.assert_allclose(short, full, atol=0.05)


# --- input ---


def test_pictures_are_scaled_and_normalised() -> None:
    model = build(TINY)
    images = pictures(TINY, 2)
    prepared = model.prepare(images)
    assert prepared.shape == (2, 1, 3, 32, 32) and prepared.dtype == torch.float32
    expected = (images[1, 0, 5, 7] / 255 - np.array(MEAN)) / np.array(STD)
    np.testing.assert_allclose(prepared[1, 0, :, 5, 7], expected, rtol=1e-5, atol=1e-6)
    raw = build(TINY.but(normalize=False)).prepare(images)
    np.testing.assert_allclose(raw[1, 0, :, 5, 7], images[1, 0, 5, 7] / 255, rtol=1e-6)
    assert prepared.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)


@KINDS
def test_uint8_and_float_pictures_arrays_and_tensors_give_the_same(spec: ModelSpec) -> None:
    model = build(spec)
    images = pictures(spec)
    expected = model.logits(images)
    scaled = images.astype(np.float32) / 255
    for other in (scaled, torch.from_numpy(scaled), torch.from_numpy(images), scaled.astype(np.float64)):
        np.testing.assert_allclose(model.logits(other), expected, rtol=0, atol=1e-6)
    if len(spec.cameras) == 1:
        np.testing.assert_array_equal(model.logits(images[:, 0]), expected)


@KINDS
def test_the_batch_size_does_not_matter(spec: ModelSpec) -> None:
    torch.manual_seed(1)
    model = build(spec)
    images = pictures(spec, 37)
    whole = probability_of(model.logits(images))
    for size in (1, 7, 256):
        np.testing.assert_allclose(probability_of(model.logits(images, size)), whole, rtol=0, atol=1e-6)
    assert model.logits(images[:0]).shape == (0,)


def test_crop_and_resize_are_of_the_spec() -> None:
    spec = TINY.but(image_size=16, crop={"main_images": (4, 2, 16, 16)}, normalize=False)
    images = pictures(TINY, 2)
    np.testing.assert_allclose(
        build(spec).prepare(images)[:, 0].permute(0, 2, 3, 1), images[:, 0, 4:20, 2:18] / 255, atol=1e-6
    )
    scaled = build(TINY.but(image_size=16, resize="bilinear", normalize=False)).prepare(images)[:, 0]
    plain = torch.from_numpy(images[:, 0]).permute(0, 3, 1, 2).float() / 255
    expected = F.interpolate(plain, (16, 16), mode="bilinear", antialias=True)
    torch.testing.assert_close(scaled, expected)
    both = spec.but(crop={"main_images": (0, 0, 32, 24)}, resize="bilinear")
    assert build(both).prepare(images).shape == (2, 1, 3, 16, 16)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (np.full((2, 32, 32, 3), np.nan, np.float32), "NaN"),
        (np.full((2, 32, 32, 3), 200.0, np.float32), "0..1"),
        (np.full((2, 32, 32, 3), -0.1, np.float32), "0..1"),
        (np.zeros((2, 32, 32, 4), np.uint8), "[2, 32, 32, 4]"),
        (np.zeros((2, 32, 32, 1), np.uint8), "[n,H,W,3]"),
        (np.zeros((2, 3, 32, 32), np.float32), "colours come last"),
        (np.zeros((32, 32, 3), np.uint8), "[32, 32, 3]"),
        (np.zeros((2, 64, 64, 3), np.uint8), "pictures of 64 px with actor.model.image_size=32"),
        (np.zeros((2, 32, 32, 3), np.int64), "int64"),
        (np.zeros((2, 2, 32, 32, 3), np.uint8), "2 of the 1 cameras"),
        ([[1, 2, 3]], "list"),
    ],
)
def test_other_pictures_are_one_clear_line(images: np.ndarray, words: str) -> None:
    model = build(TINY)
    for call in (model.prepare, model.logits):
        with pytest.raises(RefereeError) as error:
            call(images)
        assert words in str(error.value) and "\n" not in str(error.value)


def test_a_crop_beyond_the_picture_is_refused() -> None:
    model = build(TINY.but(image_size=16, crop={"main_images": (20, 0, 16, 16)}))
    with pytest.raises(RefereeError, match="ends at row 36"):
        model.prepare(pictures(TINY))


# --- views ---


def views_of(images: np.ndarray) -> dict[str, np.ndarray]:
    return {"main_images": images[:, 0], "extra_view_images": images[:, 1:]}


def test_views_are_found_by_name_or_by_place() -> None:
    three = np.random.default_rng(0).integers(0, 256, (2, 3, 8, 8, 3), dtype=np.uint8)
    named = {name: three[:, place] for place, name in enumerate(("front", "side", "wrist"))}
    obs, cameras = views_of(three), ("front", "side", "wrist")
    np.testing.assert_array_equal(select_views(named, ("wrist", "front")), three[:, [2, 0]])
    np.testing.assert_array_equal(select_views(obs, ("wrist", "front"), cameras), three[:, [2, 0]])
    np.testing.assert_array_equal(select_views(obs, cameras), three)
    np.testing.assert_array_equal(select_views(obs, ("main_images",)), three[:, 0])
    np.testing.assert_array_equal(select_views(obs, ("base_camera",)), three[:, 0])
    np.testing.assert_array_equal(select_views(obs, ("base_camera", "side"), cameras), three[:, :2])
    called_so = ("wrist", "base_camera", "side")  # then it is that one, and not the first
    np.testing.assert_array_equal(select_views(obs, ("base_camera",), called_so), three[:, 1])
    tensors = {name: torch.from_numpy(value) for name, value in named.items()}
    np.testing.assert_array_equal(select_views(tensors, ("side", "wrist")), three[:, 1:])  # type: ignore[arg-type]


def test_frames_of_any_number_of_cameras_have_five_axes() -> None:
    three = np.random.default_rng(0).integers(0, 256, (2, 3, 8, 8, 3), dtype=np.uint8)
    for places, cameras in (([1], ("side",)), ([2, 0], ("wrist", "front"))):
        found = frames_of(views_of(three), cameras, ("front", "side", "wrist"))
        np.testing.assert_array_equal(found, three[:, places])


@pytest.mark.parametrize(
    ("observations", "cameras", "words"),
    [
        ({"states": np.zeros((2, 3))}, None, "'front'"),
        ({"front": np.zeros((2, 8, 8, 3), np.uint8)}, None, "'side'"),
        ({"main_images": np.zeros((2, 8, 8, 3), np.uint8)}, None, "2 cameras"),
        (views_of(np.zeros((2, 3, 8, 8, 3), np.uint8)), None, "give `cameras`"),
        (views_of(np.zeros((2, 2, 8, 8, 3), np.uint8)), ("front", "wrist"), "'side'"),
        (views_of(np.zeros((2, 2, 8, 8, 3), np.uint8)), ("front",), "1 cameras are named"),
        ({"front": np.zeros((2, 8, 8, 3)), "side": np.zeros((3, 8, 8, 3))}, None, "differ in shape"),
        ({"main_images": np.zeros((2, 8, 8, 3)), "extra_view_images": np.zeros((2, 8, 8, 3))}, None, "[n,V,H,W,3]"),
    ],
)
def test_a_missing_camera_is_one_clear_line(
    observations: dict[str, np.ndarray], cameras: tuple[str, ...] | None, words: str
) -> None:
    with pytest.raises(RefereeError) as error:
        select_views(observations, ("front", "side"), cameras)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_observations_and_pictures_are_scored_alike() -> None:
    model = build(TWO)
    images = pictures(TWO)
    verdict = model.score(views_of(images))
    np.testing.assert_array_equal(verdict.score, model.logits(images))
    swapped = model.score(views_of(images[:, ::-1]), cameras=("side", "front"))
    np.testing.assert_allclose(swapped.score, verdict.score, atol=1e-6)


# --- verdicts ---


@settings(deadline=None)
@given(st.lists(st.floats(-1e4, 1e4), max_size=9), st.floats(0.05, 20), st.floats(0, 1))
def test_a_verdict_is_the_sigmoid_at_a_threshold(logits: list[float], temperature: float, threshold: float) -> None:
    array = np.array(logits, np.float32)
    verdict = Verdict.of(array, temperature=temperature, threshold=threshold)
    expected = torch.sigmoid(torch.tensor(array, dtype=torch.float64) / temperature).numpy()
    assert verdict.probability is not None and verdict.success is not None
    assert verdict.probability.dtype == np.float32 and verdict.success.dtype == np.bool_
    np.testing.assert_allclose(verdict.probability, expected, atol=1e-7)
    np.testing.assert_array_equal(verdict.success, verdict.probability >= threshold)


# --- specs and models of one's own ---


def test_a_spec_survives_json_and_refuses_what_it_is_not() -> None:
    spec = BINARY.but(crop={"side": (1, 2, 64, 64)}, options={"a": [1]})
    assert ModelSpec.from_json(spec.to_json()) == spec
    for wrong in (
        {"size": 3}, {"image_size": "64"}, {"image_size": True}, {"cameras": "front"}, {"crop": {"front": [1, 2]}},
        {"precision": "fp8"}, {"dropout": 1.0}, {"cameras": []}, {"cameras": ["a", "a"]}, {"norm": 3}, [1],
        {"crop": {"top": [0, 0, 8, 8]}}, {"resize": "maybe"}, {"arch": "vgg"}, {"hidden_dim": 0}, {"image_size": 4},
    ):  # fmt: skip
        with pytest.raises(RefereeError) as error:
            ModelSpec.from_json(wrong)
        assert "\n" not in str(error.value)


def test_image_sizes_of_older_configurations() -> None:
    assert square(64) == square([3, 64, 64]) == square((64, 64)) == 64
    for wrong in ([3, 64, 48], [1, 64, 64], [64]):
        with pytest.raises(RefereeError):
            square(wrong)


def test_a_model_of_ones_own_takes_a_few_lines() -> None:
    @register("tests/mean colour")
    class MeanColour(RewardModel):
        def __init__(self, spec: ModelSpec) -> None:
            super().__init__(spec)
            self.last = nn.Linear(3 * len(spec.cameras), 1)

        def encode_views(self, views: torch.Tensor) -> torch.Tensor:
            return views.mean((2, 3))

        def head(self, features: torch.Tensor) -> torch.Tensor:
            return self.last(features)[:, 0]

    assert "tests/mean colour" in names()
    spec = TWO.but(model_type="tests/mean colour")
    model = build(spec)
    assert isinstance(model, MeanColour) and model.logits(pictures(spec)).shape == (6,)
    with pytest.raises(RefereeError, match="no module named encoder"):
        build(spec.but(freeze_encoder=True))
    with pytest.raises(RefereeError, match="taken"):
        register("resnet")(MeanColour)


def test_names_of_models() -> None:
    assert {"resnet", "binary_classifier"} <= set(names())
    assert build(TINY.but(model_type="resnet_reward")).spec.model_type == "resnet"
    with pytest.raises(RefereeError, match="binary_classifier"):
        build(TINY.but(model_type="resnett"))


# --- the pooling ---


def test_spatial_embeddings_weigh_every_place_of_every_channel() -> None:
    torch.manual_seed(0)
    pool = SpatialLearnedEmbeddings(2, 3, 5, 4).double()
    features = torch.randn(7, 5, 2, 3, dtype=torch.float64)
    kernel, array = pool.kernel.detach().numpy(), features.numpy()
    expected = np.zeros((7, 5, 4))
    for row in range(2):
        for column in range(3):
            expected += array[:, :, row, column, None] * kernel[row, column]
    np.testing.assert_allclose(pool(features).detach().numpy(), expected.reshape(7, 20))


def test_the_pooling_has_the_size_of_the_real_map() -> None:
    for pixels, side in ((64, 2), (96, 3), (128, 4), (100, 4)):
        model = build(BINARY.but(image_size=pixels))
        assert isinstance(model, BinaryRewardClassifier)
        assert [tuple(pool.kernel.shape) for pool in model.pooling] == [(side, side, 64, 3)] * 2  # type: ignore[arg-type]
        assert model.logits(pictures(model.spec, 2)).shape == (2,)
    head = [type(layer) for layer in model.classifier]
    assert head == [nn.Linear, nn.LayerNorm, nn.Tanh, nn.Linear]
