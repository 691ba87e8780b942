"""From data to an artifact: what is left on disk, what the artifact says, and how a run goes on or is refused."""

import re
import time
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from referee.config.datasets import DataConfig
from referee.config.reward_training import AugmentConfig
from referee.episodes import Episode, EpisodeStore, Meta
from referee.episodes.formats.npy import NpyWriter
from referee.errors import RefereeError
from referee.models.artifact import Artifact
from referee.models.registry import build
from referee.models.spec import ModelSpec
from referee.train_reward_model import main
from referee.training import recipe
from referee.training.options import FitOptions
from referee.training.recipe import TrainOptions, best_model, train

PIXELS = 32
SMALL = {"model_type": "resnet", "arch": "resnet10", "width": 8, "hidden_dim": 16}


def episodes(count: int = 10) -> list[Episode]:
    """Episodes of 8 frames; those of success, the last three of every other episode, show a red square."""
    random = np.random.default_rng(0)
    made = []
    for number in range(count):
        views = random.integers(0, 120, (8, 2, PIXELS, PIXELS, 3), dtype=np.uint8)
        success = (np.arange(8) >= 5) & bool(number % 2)
        views[success, :, 8:20, 8:20, 0] = 250
        zeros = np.zeros(7, bool)
        made.append(
            Episode({"main_images": views[:, 0].copy(), "extra_view_images": views[:, 1:].copy()},
                    np.zeros((7, 2), np.float32), np.zeros(7, np.float32), zeros, zeros, success,
                    meta=Meta(id=f"e{number}", cameras=("front", "side"), episode=number))
        )  # fmt: skip
    return made


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    EpisodeStore(folder).append_many(episodes())
    return folder


def options(store: Path, output: Path, *, model: dict[str, Any] | None = None, **changes: Any) -> TrainOptions:
    more = {name: changes.pop(name) for name in ("resume_dir", "checkpoints") if name in changes}
    start = {name: changes.pop(name) for name in ("pretrained", "model_path") if name in changes}
    data = {name: changes.pop(name) for name in ("debug_save_dir", "cameras") if name in changes}
    fit = {"lr": 5e-3, "global_batch_size": 16, "max_epochs": 4, "num_threads": 1, **changes}
    fit.setdefault("augment", AugmentConfig(random_shift=1))
    return TrainOptions(
        data=DataConfig(data_path=store, **data), output=output, model={**SMALL, **(model or {}), **start},
        fit=FitOptions(**fit), cache_dir=output / "cache", **more,
    )  # fmt: skip


def run(options: TrainOptions, **more: Any) -> tuple[Artifact, str]:
    console = Console(file=StringIO(), width=200)
    folder = train(options, console, **more)
    assert folder == best_model(options.output)
    return Artifact.load(folder), console.file.getvalue()  # type: ignore[attr-defined]


def test_data_to_artifact(store: Path, tmp_path: Path) -> None:
    logged: list[tuple[dict[str, float], int]] = []
    chosen = options(store, tmp_path, debug_save_dir=tmp_path / "debug", checkpoints=(tmp_path / "out" / "model.pt",))
    artifact, text = run(chosen, log=lambda values, step: logged.append((values, step)))
    assert "cameras front, side" in text and "finished at step" in text
    assert artifact.spec.cameras == ("front", "side") and artifact.spec.image_size == PIXELS
    assert artifact.reference is not None and artifact.provenance["val"]["auroc"] > 0.9
    ids = [set(artifact.provenance["episodes"][side]) for side in ("train", "val")]
    assert ids[0] | ids[1] == {f"e{number}" for number in range(10)} and not ids[0] & ids[1]
    assert {"val/auroc", "train/loss", "train/lr"} <= logged[-1][0].keys()
    assert any((tmp_path / "debug" / "training" / "success").iterdir())
    assert any((tmp_path / "debug" / "validation").rglob("*_prob*.png"))

    values = torch.load(tmp_path / "out" / "model.pt", weights_only=True)
    assert {"epoch", "model_state_dict", "optimizer_state_dict", "train_loss", "train_acc"} <= values.keys()
    again = Artifact.open(tmp_path / "out" / "model.pt")
    images = np.stack([each.observations["main_images"] for each in episodes(2)]).reshape(-1, PIXELS, PIXELS, 3)
    views = np.stack([images, images], axis=1)
    np.testing.assert_allclose(again.logits(views), artifact.logits(views), atol=1e-6)


def test_validation_and_artifact_give_the_same_numbers(store: Path, tmp_path: Path) -> None:
    """What was measured in training is what the loaded artifact says of the same frames."""
    from referee.metrics.ranking import auroc
    from referee.training.data import FrameSet

    artifact, _ = run(options(store, tmp_path))
    val = FrameSet([tmp_path / "data" / "val.pt"])
    images, labels = val.batch(range(len(val)))
    logits = artifact.logits(images)
    assert auroc(labels.numpy(), logits) == artifact.provenance["val"]["auroc"]
    loss = np.logaddexp(0, np.where(labels.numpy() == 1, -logits, logits)).mean()
    assert loss == pytest.approx(artifact.provenance["val"]["loss"], abs=1e-6)


@pytest.mark.parametrize("model_type", ["resnet", "binary_classifier"])
def test_frozen_encoder_is_warmed_up_encoded_once_and_stays(store: Path, tmp_path: Path, model_type: str) -> None:
    chosen = options(
        store, tmp_path, model={"model_type": model_type, "freeze_encoder": True}, encoder_warmup_steps=8,
        max_epochs=10, feature_copies=1,
    )  # fmt: skip
    artifact, _ = run(chosen)
    assert artifact.spec.freeze_encoder and artifact.provenance["val"]["auroc"] > 0.9
    cached = sorted((tmp_path / "cache").iterdir())
    assert len(cached) == 3  # training, its changed copy, validation
    times = [path.stat().st_mtime_ns for path in cached]
    resumed, _ = run(
        options(store, tmp_path, model={"model_type": model_type, "freeze_encoder": True}, encoder_warmup_steps=8,
                max_epochs=10, feature_copies=1, resume_dir=tmp_path)
    )  # fmt: skip
    assert sorted((tmp_path / "cache").iterdir()) == cached
    assert [path.stat().st_mtime_ns for path in cached] == times
    for name, value in artifact.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name])


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.alone
def test_a_warm_up_counts_as_time_and_not_as_steps(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    """Reading the data takes half a second more; then 8 steps with the whole model, and 4 epochs with its head."""
    read = recipe.open_data
    monkeypatch.setattr(recipe, "open_data", lambda *args: (time.sleep(0.5), read(*args))[1])
    several = {"training_backend": "ddp", "num_processes": 2} if processes == 2 else {}
    chosen = options(store, tmp_path, model={"freeze_encoder": True}, encoder_warmup_steps=8, log_interval=2, **several)
    logged: list[tuple[dict[str, float], int]] = []
    began = time.perf_counter()
    _, text = run(chosen, log=lambda values, step: logged.append((values, step)))
    whole = time.perf_counter() - began
    steps = [step for _, step in logged]
    assert steps == sorted(steps) and steps[:5] == [0, 0, 0, 0, 2]
    assert [values.get("warmup/step") for values, _ in logged[:5]] == [2, 4, 6, 8, None]
    assert all(("train/loss" in values) != ("warmup/loss" in values) for values, _ in logged)
    seconds = [values["time/seconds"] for values, _ in logged]
    assert seconds == sorted(seconds) and seconds[0] >= 0.5 and seconds[-1] <= whole
    (said,) = re.findall(r"finished at step \d+ after ([\d.]+) s", text)
    assert float(said) == pytest.approx(seconds[-1], abs=0.06)


def test_warm_up_is_chosen_and_said(store: Path, tmp_path: Path) -> None:
    frozen = {"freeze_encoder": True}
    _, text = run(options(store, tmp_path / "a", model=frozen, encoder_warmup_steps=0, max_epochs=1))
    assert "warning: the frozen encoder is random" in text
    with pytest.raises(RefereeError, match="encoder_warmup_steps has no effect"):
        run(options(store, tmp_path / "b", encoder_warmup_steps=5))


def test_stop_and_resume_equal_one_run(store: Path, tmp_path: Path) -> None:
    whole, _ = run(options(store, tmp_path / "whole"))
    left = iter(range(7))
    _, text = run(options(store, tmp_path / "part"), stop=lambda: next(left, None) is None)
    assert "interrupted at step 8" in text
    rest, _ = run(options(store, tmp_path / "part", resume_dir=tmp_path / "part"))
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, rest.model.state_dict()[name]), name


def test_goes_on_from_weights(store: Path, tmp_path: Path) -> None:
    first, _ = run(options(store, tmp_path / "a"))
    second, _ = run(options(store, tmp_path / "b", model_path=best_model(tmp_path / "a"), max_steps=1, lr=1e-9))
    for name, value in first.model.named_parameters():
        torch.testing.assert_close(dict(second.model.named_parameters())[name], value, rtol=0, atol=1e-6)
    with pytest.raises(RefereeError, match="looks at front, side"):
        run(options(store, tmp_path / "c", model_path=best_model(tmp_path / "a"), cameras=("front",)))


def test_other_sizes_are_scaled(store: Path, tmp_path: Path) -> None:
    artifact, text = run(options(store, tmp_path, model={"image_size": 64}, max_epochs=1))
    assert "32x32 px are scaled to 64x64" in text and artifact.spec.resize == "bilinear"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["ddp", "fsdp"])
def test_two_processes(store: Path, tmp_path: Path, backend: str) -> None:
    plain = {"max_steps": 4, "micro_batch_size": 8}  # of more, Adam makes the last bits of a sum the first
    one, _ = run(options(store, tmp_path / "one", **plain))
    two, text = run(options(store, tmp_path / "two", training_backend=backend, num_processes=2, **plain))
    assert "finished at step" in text
    for name, value in one.model.state_dict().items():
        torch.testing.assert_close(two.model.state_dict()[name], value, rtol=1e-3, atol=1e-4, msg=name)
    frozen, _ = run(
        options(store, tmp_path / "frozen", model={"freeze_encoder": True}, encoder_warmup_steps=2,
                training_backend=backend, num_processes=2, **plain)
    )  # fmt: skip
    assert frozen.spec.freeze_encoder
    with pytest.raises(RefereeError, match="too few"):
        run(options(store, tmp_path / "few", training_backend=backend, num_processes=2, global_batch_size=200,
                    micro_batch_size=1))  # fmt: skip


@pytest.fixture
def trajectories(tmp_path: Path) -> Path:
    writer = NpyWriter(tmp_path / "positive", tmp_path / "negative")
    for episode in episodes():
        writer.append(episode)
    return tmp_path


def test_documented_command_line(trajectories: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoder = build(ModelSpec(model_type="binary_classifier", arch="resnet10", width=8)).encoder
    torch.save(encoder.state_dict(), trajectories / "encoder.pt")
    output = trajectories / "checkpoints" / "reward_model.pt"
    code = main([
        "--positive-dir", str(trajectories / "positive"), "--negative-dir", str(trajectories / "negative"),
        "--output-checkpoint", str(output), "--pretrained-encoder-path", str(trajectories / "encoder.pt"),
        "--backbone", "resnet10", "--image-key", "base_camera", "--image-size", "3", "32", "32", "--batch-size", "16",
        "--epochs", "2", "--lr", "1e-3", "--hidden-dim", "16", "--num-spatial-blocks", "4", "--visualize-positive",
        "--vis-output-dir", str(trajectories / "vis"),
    ])  # fmt: skip
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert "5 trajectories, 40 frames, label=1: 15, label=0: 25" in printed.out
    assert (trajectories / "vis" / "positive_000001_frame007.png").exists()
    values = torch.load(output, weights_only=True)
    assert {"epoch", "model_state_dict", "optimizer_state_dict", "train_loss", "train_acc"} <= values.keys()
    for name, value in encoder.state_dict().items():  # frozen: as it was given
        assert torch.equal(values["model_state_dict"][f"encoder.{name}"], value), name


def test_command_line_defaults_and_errors(trajectories: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from referee.train_reward_model import parser

    given = parser().parse_args(["--positive-dir", "p", "--negative-dir", "n", "--output-checkpoint", "o"])
    documented = {
        "pretrained_encoder_path": None, "backbone": "resnet10", "image_key": "base_camera", "image_size": (3, 64, 64),
        "batch_size": 32, "epochs": 100, "lr": 1e-4, "hidden_dim": 256, "num_spatial_blocks": 8,
        "visualize_positive": False, "vis_output_dir": Path("positive_samples_vis"),
    }  # fmt: skip
    assert {name: getattr(given, name) for name in documented} == documented
    code = main(["--positive-dir", str(trajectories / "nowhere"), "--negative-dir", str(trajectories / "negative"),
                 "--output-checkpoint", str(trajectories / "x.pt")])  # fmt: skip
    error = capsys.readouterr().err
    assert code == 2 and error.count("\n") == 1 and "nowhere" in error
    assert not (trajectories / "x.pt").exists()
