"""The manager on a small real artifact: its numbers are the artifact's, however they are asked for."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from referee.errors import RefereeError
from referee.models import Artifact, Calibration, ModelSpec, Reference, build
from referee.models.artifact import embed
from referee.rewards import RewardManager, RewardOptions, debug

SPEC = ModelSpec(arch="resnet10", width=8, hidden_dim=16, image_size=32, cameras=("front", "side"))


def frames(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Flat pictures with a little noise: their brightness is what a model can see."""
    random = np.random.default_rng(seed)
    bright = random.integers(0, 200, (count, 2, 1, 1, 3))
    images = (bright + random.integers(0, 56, (count, 2, 32, 32, 3))).astype(np.uint8)
    return {"main_images": images[:, 0], "extra_view_images": images[:, 1:]}


def stacked(observations: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([observations["main_images"][:, None], observations["extra_view_images"]], axis=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained for a few steps, so that its probabilities differ, then saved."""
    torch.manual_seed(0)
    model = build(SPEC).train()
    images = stacked(frames(32))
    labels = torch.from_numpy((images[:, 0].mean((1, 2, 3)) > 120).astype(np.float32))
    optimizer = torch.optim.AdamW(model.trainable_parameters(), lr=3e-3)
    for _ in range(8):
        optimizer.zero_grad()
        model.loss(images, labels).backward()
        optimizer.step()
    model.eval()
    middle = float(np.median(model.logits(images)))
    calibration = Calibration(temperature=1.7, threshold=1 / (1 + math.exp(-middle / 1.7)), gate_k=2, gate_n=3)
    path = tmp_path_factory.mktemp("artifact") / "model"
    Artifact(model, calibration, {}, Reference.of(embed(model, images), images)).save(path)
    return path


def test_the_manager_says_what_the_artifact_says(folder: Path) -> None:
    artifact, observations = Artifact.load(folder), frames(40, seed=1)
    expected = artifact.score(observations, cameras=("front", "side"))
    assert expected.probability is not None and expected.success is not None
    assert np.ptp(expected.probability) > 0.02 and 0 < expected.success.mean() < 1
    for given in (folder, str(folder), artifact):
        manager = RewardManager(given, RewardOptions(reward_type="continuous", reward_threshold=0.0))
        found = manager.compute_rewards({**observations, "states": np.zeros((40, 3)), "task": "pick"})  # type: ignore[dict-item]
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected.probability, rtol=0, atol=1e-6)
        assert manager.frames == 40 and manager.seconds > 0
    binary = RewardManager(folder, RewardOptions(success_reward=3, fail_reward=-1))
    paid = binary.compute_rewards(observations)
    np.testing.assert_array_equal(paid, np.where(expected.success, 3, -1))
    score = RewardManager(folder, RewardOptions(reward_type="score")).compute_rewards(observations)
    np.testing.assert_allclose(score, expected.score, rtol=0, atol=1e-6)
    by_name = {"front": observations["main_images"], "side": observations["extra_view_images"][:, 0]}
    np.testing.assert_array_equal(binary.compute_rewards(by_name), paid)


def test_mini_batches_change_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observations = frames(23, seed=2)
    expected = RewardManager(folder).judge(observations)
    sizes: list[int] = []
    real = Artifact.seen

    def seen(self: Artifact, images: np.ndarray, batch_size: int = 256) -> tuple[np.ndarray, np.ndarray]:
        sizes.append(len(images))
        return real(self, images, batch_size)

    monkeypatch.setattr(Artifact, "seen", seen)
    for size, pieces in ((1, [1] * 23), (10, [10, 10, 3]), (23, [23]), (256, [23])):
        sizes.clear()
        found = RewardManager(folder, micro_batch=size).judge(observations)
        assert sizes == pieces
        np.testing.assert_allclose(found.score, expected.score, rtol=0, atol=1e-6)
    nothing = RewardManager(folder).compute_rewards(frames(0))
    assert nothing.shape == (0,)


def test_threshold_and_gate_are_the_artifacts_unless_given(folder: Path) -> None:
    observations = frames(40, seed=1)
    own = RewardManager(folder)
    assert own.threshold == own.artifact.calibration.threshold
    assert (own.gate(4).k, own.gate(4).n) == (2, 3)
    probability = own.judge(observations).probability
    assert probability is not None
    high = float(np.quantile(probability, 0.9))
    strict = RewardManager(folder, RewardOptions(reward_threshold=high))
    assert strict.threshold == high
    np.testing.assert_array_equal(strict.compute_rewards(observations), probability >= np.float32(high))
    assert 0 < strict.compute_rewards(observations).sum() < own.compute_rewards(observations).sum()
    above = RewardManager(folder, RewardOptions(reward_threshold=high, reward_type="continuous"))
    np.testing.assert_array_equal(
        above.compute_rewards(observations), np.where(probability >= np.float32(high), probability, 0)
    )
    options = RewardOptions(reward_mode="per_step", gate_n=5)
    assert (RewardManager(folder, options).gate(1).k, RewardManager(folder, options).gate(1).n) == (2, 5)
    with pytest.raises(RefereeError, match="gate of 4 of 3 cannot be"):
        RewardManager(folder, RewardOptions(reward_mode="per_step", gate_k=4))


def test_what_is_missing_is_said(folder: Path, tmp_path: Path) -> None:
    for nothing in (None, ""):
        with pytest.raises(RefereeError, match=r"reward\.model\.model_path is not given"):
            RewardManager(nothing)
    with pytest.raises(RefereeError, match="is no artifact"):
        RewardManager(tmp_path / "nowhere")
    manager, observations = RewardManager(folder), frames(3)
    with pytest.raises(RefereeError, match="camera 'side', but the observations hold front, states"):
        manager.judge({"front": observations["main_images"], "states": np.zeros((3, 2))})
    with pytest.raises(RefereeError, match="camera 'front', but the observations hold states"):
        manager.compute_rewards({"states": np.zeros((3, 2))})
    with pytest.raises(RefereeError, match="camera 'side', but the observations show front, wrist"):
        manager.compute_rewards(observations, cameras=("front", "wrist"))
    with pytest.raises(RefereeError, match="3 of main_images, 2 of extra_view_images"):
        manager.compute_rewards({**observations, "extra_view_images": observations["extra_view_images"][:2]})
    with pytest.raises(RefereeError, match="mini-batches of 0"):
        RewardManager(folder, micro_batch=0)
    with pytest.raises(RefereeError, match="cannot go to device nowhere"):
        manager.to_device("nowhere")
    with pytest.raises(RefereeError, match="has no int8"):
        RewardManager(folder, int8=True)
    manager.to_device("cpu")
    assert manager.compute_rewards(observations).shape == (3,)


def test_a_broken_model_pays_nobody(folder: Path) -> None:
    manager = RewardManager(folder)
    with torch.no_grad():
        next(manager.artifact.model.parameters()).fill_(float("nan"))
    with pytest.raises(RefereeError, match="says nan of frame 0"):
        manager.compute_rewards(frames(2))


def test_a_back_end_of_its_own_choice_survives_a_swap(folder: Path) -> None:
    pytest.importorskip("openvino")
    assert RewardManager(folder, backend="auto").artifact.scorer is None  # a few last states: not worth its start
    manager = RewardManager(folder, RewardOptions(reward_mode="per_step"), backend="auto")
    manager.swap(Artifact.open(folder), 1)
    assert manager.artifact.scorer is not None and manager.artifact.scorer.name == "openvino int8"
    manager.artifact.reference = None  # nothing to compare on
    manager.artifact.scorer = None
    manager.swap(manager.artifact, 2)
    assert manager.artifact.scorer is None


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_another_back_end_is_compared_and_used(folder: Path, backend: str) -> None:
    pytest.importorskip(backend)
    pytest.importorskip("onnx")
    observations = frames(20, seed=1)
    expected = RewardManager(folder, RewardOptions(reward_type="score")).compute_rewards(observations)
    found = RewardManager(folder, RewardOptions(reward_type="score"), backend=backend).compute_rewards(observations)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    with pytest.raises(RefereeError, match=f"{backend} back end scores on cpu"):
        RewardManager(folder, backend=backend, device="cuda")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_debug_pictures_show_what_was_paid(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debug, "KEPT", 6)
    observations = frames(40, seed=1)
    manager = RewardManager(folder, debug_save_dir=tmp_path / "debug")
    verdict = manager.judge(observations)
    assert verdict.success is not None and verdict.probability is not None
    for kind, success in (("resnet_success", True), ("resnet_fail", False)):
        saved = names(tmp_path / "debug" / kind)
        assert len(saved) == debug.PER_BATCH
        for name in saved:
            match = re.fullmatch(r"(\d{6})_prob(\d\.\d{4})\.png", name)
            assert match is not None
            row = int(match[1])
            assert verdict.success[row] == success and f"{verdict.probability[row]:.4f}" == match[2]
            shown = np.asarray(Image.open(tmp_path / "debug" / kind / name))
            np.testing.assert_array_equal(shown, np.concatenate(list(stacked(observations)[row]), axis=1))
    manager.judge(observations)
    again = names(tmp_path / "debug" / "resnet_fail")
    assert len(again) == 6 and again[-1] >= "000040"  # the oldest made room

    floats = {name: images.astype(np.float32) / 255 for name, images in observations.items()}
    monkeypatch.setenv("DEBUG_IMAGE_SAVE_DIR", str(tmp_path / "debug"))  # another run goes on counting
    RewardManager(folder).judge(floats)
    assert len(names(tmp_path / "debug" / "resnet_fail")) == 6
    assert names(tmp_path / "debug" / "resnet_fail")[-1] > again[-1]


def test_debug_pictures_never_end_a_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RefereeError, match="cannot write debug pictures"):
        RewardManager(folder, debug_save_dir=tmp_path / "file")
    manager = RewardManager(folder, debug_save_dir=tmp_path / "debug")

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(debug, "atomic_save", full)
    for _ in range(2):
        assert manager.compute_rewards(frames(8)).shape == (8,)
    assert len(caplog.records) == 1 and "no space left" in caplog.text


def test_a_success_unlike_all_known_ones_is_none(tmp_path: Path) -> None:
    model = build(ModelSpec(arch="resnet10", width=4, image_size=32, cameras=("front",), hidden_dim=8)).eval()
    random = np.random.default_rng(0)
    images = random.integers(90, 110, (120, 32, 32, 3)).astype(np.uint8)
    other = random.integers(0, 255, (20, 32, 32, 3)).astype(np.uint8)
    features = embed(model, images)
    every = np.ones(120, bool)
    options = RewardOptions(veto_unknown=True, reward_threshold=0.0)  # all is called a success
    plain = Artifact(model, reference=Reference.of(features, images))
    with pytest.raises(RefereeError, match="veto_unknown has nothing to compare with"):
        RewardManager(plain, options)
    reference = Reference.of(features, images, successes=every).calibrated(features, successes=every)
    manager = RewardManager(Artifact(model, reference=reference), options)
    both = {"front": np.concatenate([images, other])}
    success = manager.judge(both, cameras=("front",)).success
    assert success is not None
    assert success[:120].mean() == pytest.approx(0.95, abs=0.02) and not success[120:].any()
    free = RewardManager(Artifact(model, reference=reference), RewardOptions(reward_threshold=0.0))
    assert free.judge(both, cameras=("front",)).success.all()  # type: ignore[union-attr]
