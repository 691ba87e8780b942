"""Artifacts: what they score is what the model scored, and half of one is never read or written."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from referee.checksums import read_json
from referee.errors import RefereeError
from referee.models import Artifact, Calibration, ModelSpec, Reference, build
from referee.models import artifact as module
from referee.models.artifact import embed
from referee.models.contract import ModelError
from referee.models.reference import MAX_DIM, shrunk_covariance

SPECS = {
    "resnet": ModelSpec(arch="resnet10", width=8, hidden_dim=16, image_size=32, cameras=("front", "side")),
    "group, cropped": ModelSpec(
        arch="resnet10", width=8, hidden_dim=16, image_size=24, cameras=("front",), norm="group", padding="same",
        crop={"front": (2, 3, 26, 26)}, resize="bilinear", normalize=False,
    ),
    "frozen binary": ModelSpec(
        model_type="binary_classifier", arch="resnet10", width=8, hidden_dim=16, image_size=32,
        cameras=("front", "side"), freeze_encoder=True, dropout=0.1,
    ),
}  # fmt: skip
KINDS = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
PROVENANCE = {"dataset_hash": "sha256:12", "episodes": {"train": ["a"], "val": ["b"]}, "seed": 7}


def frames(spec: ModelSpec, count: int = 20, seed: int = 0) -> np.ndarray:
    shape = (count, len(spec.cameras), 32, 32, 3)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def trained(spec: ModelSpec) -> Artifact:
    """A model after two steps, so that nothing is at its initial value."""
    torch.manual_seed(0)
    model = build(spec).train()
    optimizer = torch.optim.AdamW(model.trainable_parameters(), lr=1e-2)
    for _ in range(2):
        model.loss(frames(spec), torch.arange(20) % 2).backward()
        optimizer.step()
    reference = Reference.of(embed(model, frames(spec)), frames(spec))
    return Artifact(model, Calibration(temperature=1.7, threshold=0.4, gate_k=2, gate_n=3), PROVENANCE, reference)


@KINDS
def test_a_frame_has_one_score_wherever_it_is_asked_for(tmp_path: Path, spec: ModelSpec) -> None:
    artifact = trained(spec)
    images = frames(spec, 40, seed=1)
    artifact.model.eval()
    with torch.no_grad():  # as a validation loop does
        expected = torch.cat(
            [artifact.model(artifact.model.prepare(images[i : i + 5])) for i in range(0, 40, 5)]
        ).numpy()
    assert np.ptp(expected) > 1e-3
    artifact.model.train()
    artifact.save(tmp_path / "model")
    loaded = Artifact.load(tmp_path / "model")
    assert loaded.spec == artifact.spec and loaded.calibration == artifact.calibration
    assert loaded.provenance == PROVENANCE and not loaded.model.training
    close = {"rtol": 0, "atol": 1e-6}
    for each in (artifact, loaded):
        for size in (1, 3, 256):
            np.testing.assert_allclose(each.logits(images, size), expected, **close)
        np.testing.assert_allclose(each.logits(images.astype(np.float32) / 255), expected, **close)
        np.testing.assert_allclose(each.logits(torch.from_numpy(images)), expected, **close)
        by_name = {name: images[:, place] for place, name in enumerate(spec.cameras)}
        as_env = {"main_images": images[:, 0], "extra_view_images": images[:, 1:], "states": np.zeros((40, 3))}
        for observations, cameras in ((by_name, None), (as_env, None), (as_env, spec.cameras)):
            verdict = each.score(observations, cameras=cameras)
            np.testing.assert_allclose(verdict.score, expected, **close)
            assert verdict.probability is not None and verdict.success is not None
            probability = 1 / (1 + np.exp(-expected / 1.7))
            np.testing.assert_allclose(verdict.probability, probability, **close)
            np.testing.assert_array_equal(verdict.success, verdict.probability >= 0.4)
        np.testing.assert_allclose(each.distance(images), artifact.distance(images), rtol=1e-5)


def test_the_directory_holds_what_is_documented_and_nothing_else(tmp_path: Path) -> None:
    trained(SPECS["resnet"]).save(tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    names = {"model.safetensors", "config.json", "calibration.json", "reference.safetensors", "provenance.json"}
    assert {path.name for path in (tmp_path / "model").iterdir()} == names


def test_saving_again_replaces_and_a_failed_save_leaves_the_old(tmp_path: Path) -> None:
    artifact = trained(SPECS["resnet"])
    artifact.save(tmp_path / "model")
    (tmp_path / "model" / "report").mkdir()
    artifact.calibration = Calibration(threshold=0.9)
    artifact.save(tmp_path / "model")
    assert Artifact.load(tmp_path / "model").calibration.threshold == 0.9
    assert not (tmp_path / "model" / "report").exists()  # it was about another model
    artifact.provenance = {"when": {1, 2}}
    with pytest.raises(RefereeError, match=r"provenance\.json"):
        artifact.save(tmp_path / "model")
    assert Artifact.load(tmp_path / "model").calibration.threshold == 0.9
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = trained(SPECS["resnet"])
    artifact.save(tmp_path / "model")
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if target == tmp_path / "model":
            raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        artifact.save(tmp_path / "model")
    monkeypatch.undo()
    assert not (tmp_path / "model").exists()
    np.testing.assert_array_equal(
        Artifact.load(tmp_path / "model").logits(frames(artifact.spec)), artifact.logits(frames(artifact.spec))
    )
    artifact.save(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_new_calibration_is_written_alone(tmp_path: Path) -> None:
    artifact = trained(SPECS["resnet"])
    artifact.save(tmp_path / "model")
    before = (tmp_path / "model" / "model.safetensors").stat().st_mtime_ns
    artifact.recalibrate(Calibration(threshold=0.8, target_episode_fpr=0.01, measured={"episodes": 12}))
    loaded = Artifact.load(tmp_path / "model")
    assert loaded.calibration == artifact.calibration and loaded.calibration.measured == {"episodes": 12}
    assert (tmp_path / "model" / "model.safetensors").stat().st_mtime_ns == before


# --- what is broken ---


def _edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**read_json(path), **changes}))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "spoil", "words"),
    [
        ("config.json", lambda path: _edit(path, version=2), "version 2"),
        ("config.json", lambda path: _edit(path, version="1"), "no version"),
        ("config.json", lambda path: _edit(path, page_sum=None), "page_sum"),
        ("config.json", lambda path: _edit(path, model={"arch": "vgg"}), "vgg"),
        ("config.json", _cut, "cut off"),
        ("config.json", lambda path: path.write_text("[]"), "cut off"),
        ("config.json", Path.unlink, "is missing"),
        ("model.safetensors", _cut, "cut off"),
        ("model.safetensors", _flip, "checksum"),
        ("model.safetensors", Path.unlink, "is missing"),
        ("reference.safetensors", _cut, "cut off"),
        ("reference.safetensors", Path.unlink, "is missing"),
        ("calibration.json", lambda path: _edit(path, threshold=1.5), "0..1"),
        ("calibration.json", lambda path: _edit(path, thresh=0.5), "threshold"),
        ("calibration.json", Path.unlink, "is missing"),
        ("provenance.json", Path.unlink, "is missing"),
        ("provenance.json", _cut, "cut off"),
    ],
)
def test_a_broken_artifact_is_one_line_that_names_the_file(tmp_path: Path, name: str, spoil: Any, words: str) -> None:
    trained(SPECS["resnet"]).save(tmp_path / "model")
    spoil(tmp_path / "model" / name)
    with pytest.raises(RefereeError) as error:
        Artifact.load(tmp_path / "model")
    assert words in str(error.value) and "\n" not in str(error.value)
    assert str(tmp_path / "model") in str(error.value)
    if "version 2" not in words:
        assert name in str(error.value)


def test_every_cut_of_the_weights_is_found(tmp_path: Path) -> None:
    trained(SPECS["resnet"]).save(tmp_path / "whole")
    data = (tmp_path / "whole" / "model.safetensors").read_bytes()
    for length in {0, 1, 7, 8, 100, len(data) // 2, len(data) - 1}:
        shutil.copytree(tmp_path / "whole", tmp_path / "cut", dirs_exist_ok=True)
        (tmp_path / "cut" / "model.safetensors").write_bytes(data[:length])
        with pytest.raises(RefereeError, match=r"model\.safetensors: is cut off"):
            Artifact.load(tmp_path / "cut")


def test_a_place_without_an_artifact(tmp_path: Path) -> None:
    for place in (tmp_path / "nothing", tmp_path):
        with pytest.raises(RefereeError):
            Artifact.load(place)
        with pytest.raises(RefereeError):
            Artifact.open(place)


@pytest.mark.parametrize(
    "wrong",
    [
        {"threshold": 1.01}, {"threshold": -0.1}, {"threshold": float("nan")}, {"threshold": "0.5"},
        {"temperature": 0.0}, {"temperature": float("inf")}, {"gate_k": 0}, {"gate_k": 3, "gate_n": 2},
        {"gate_k": 1.0}, {"target_episode_fpr": 2}, {"threshold": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_calibration_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RefereeError) as error:
        Calibration(**wrong)
    assert next(iter(wrong)) in str(error.value) and "\n" not in str(error.value)


# --- the reference ---


def test_shrinkage_is_that_of_ledoit_and_wolf() -> None:
    random = np.random.default_rng(0)
    samples = random.standard_normal((12, 5)) @ random.standard_normal((5, 5))
    centred = samples - samples.mean(0)
    covariance = sum(np.outer(row, row) for row in centred) / 12
    mean = np.trace(covariance) / 5
    norm = lambda matrix: np.sum(matrix**2) / 5  # noqa: E731
    distance = norm(covariance - mean * np.eye(5))
    error = min(sum(norm(np.outer(row, row) - covariance) for row in centred) / 12**2, distance)
    expected = error / distance * mean * np.eye(5) + (distance - error) / distance * covariance
    np.testing.assert_allclose(shrunk_covariance(samples), expected, rtol=1e-4, atol=1e-5 * mean)


def test_few_frames_of_many_dimensions_have_a_distance() -> None:
    random = np.random.default_rng(0)
    features = random.standard_normal((30, 200)).astype(np.float32)
    reference = Reference.of(features, np.zeros((30, 1, 8, 8, 3), np.uint8))
    usual, strange = reference.distance(features), reference.distance(features + 5)
    assert np.isfinite(usual).all() and usual.max() < strange.min()
    constant = Reference.of(np.ones((5, 3), np.float32), np.zeros((5, 8, 8, 3), np.uint8))
    assert np.isfinite(constant.distance(np.zeros((2, 3), np.float32))).all()


def test_usual_frames_are_about_one_away() -> None:
    random = np.random.default_rng(1)
    mix = np.linalg.qr(random.standard_normal((6, 6)))[0] * np.array([1, 1, 2, 2, 3, 3])
    features = (random.standard_normal((4000, 6)) @ mix + 3).astype(np.float32)
    reference = Reference.of(features, np.zeros((1, 1, 8, 8, 3), np.uint8))
    fresh = (random.standard_normal((4000, 6)) @ mix + 3).astype(np.float32)
    assert np.mean(reference.distance(fresh) ** 2) == pytest.approx(1, abs=0.05)


def test_wide_features_are_projected_and_still_tell_frames_apart(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    features = random.standard_normal((300, MAX_DIM + 100)).astype(np.float32)
    reference = Reference.of(features, np.zeros((80, 1, 8, 8, 3), np.uint8))
    assert reference.precision.shape == (MAX_DIM, MAX_DIM) and len(reference.frames) == 64
    assert reference.distance(features).max() < reference.distance(features + 3).min()
    again = Reference.from_arrays(reference.arrays())
    np.testing.assert_array_equal(again.distance(features), reference.distance(features))


def test_a_reference_needs_frames_and_an_artifact_a_reference() -> None:
    with pytest.raises(RefereeError, match="too few"):
        Reference.of(np.zeros((1, 3), np.float32), np.zeros((1, 8, 8, 3), np.uint8))
    with pytest.raises(RefereeError, match="uint8"):
        Reference.of(np.zeros((3, 3), np.float32), np.zeros((3, 8, 8, 3), np.float32))
    bare = Artifact(build(SPECS["resnet"]))
    for call in (lambda: bare.distance(frames(bare.spec)), lambda: bare.use("torch")):
        with pytest.raises(RefereeError, match="holds no"):
            call()
    assert module.VERSION == 1


def test_unknown_successes_are_those_beyond_nearly_all_of_validation() -> None:
    random = np.random.default_rng(0)
    features = random.standard_normal((600, 4)).astype(np.float32)
    wins = np.arange(600) % 3 == 0
    features[wins] += np.array([6, 0, 0, 0], np.float32)
    plain = Reference.of(features, np.zeros((2, 1, 8, 8, 3), np.uint8))
    assert not plain.knows_successes
    with pytest.raises(ModelError, match="which of its frames are successes"):
        plain.unknown(features)
    reference = Reference.of(features, np.zeros((2, 1, 8, 8, 3), np.uint8), successes=wins)
    assert not reference.knows_successes, "nothing of validation yet"
    reference = reference.calibrated(features, successes=wins)
    assert reference.unknown(features[wins]).mean() == pytest.approx(0.05, abs=0.01)
    assert reference.unknown(features[~wins]).mean() > 0.95 and reference.unknown(features[wins] + 9).all()
    # By hand: the distance that a covariance of the successes alone gives.
    away = features[:5] - features[wins].mean(0)
    by_hand = np.sqrt(np.einsum("nd,de,ne->n", away, np.linalg.inv(shrunk_covariance(features[wins])), away) / 4)
    np.testing.assert_allclose(reference._from_successes(features[:5]), by_hand, rtol=1e-3)
    again = Reference.from_arrays(reference.arrays())
    assert (again.unknown(features) == reference.unknown(features)).all()
    with pytest.raises(ModelError, match="successes that do not fit"):
        Reference.from_arrays({**reference.arrays(), "success_mean": np.zeros(3, np.float32)})


def test_an_artifact_of_older_versions_is_verified_by_its_sha256(tmp_path: Path) -> None:
    Artifact(build(SPECS["resnet"])).save(tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    digest = hashlib.sha256((tmp_path / "a" / "model.safetensors").read_bytes()).hexdigest()
    config.pop("checksum"), config.pop("page_sum")
    (tmp_path / "a" / "config.json").write_text(json.dumps({**config, "sha256": {"model.safetensors": digest}}))
    Artifact.load(tmp_path / "a")
    _flip(tmp_path / "a" / "model.safetensors")
    with pytest.raises(ModelError, match=r"model.safetensors: is cut off or has changed"):
        Artifact.load(tmp_path / "a")
