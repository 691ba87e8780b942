"""What is wrong with episodes and models is told by every verb that reads them, and kept where it is looked for."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from episodes.examples import make_episode
from referee.cli import main
from referee.datasets.payload import PayloadWriter
from referee.episodes import EpisodeStore
from referee.models import Artifact, Calibration, ModelSpec, Reference, build
from referee.models.artifact import embed
from referee.rewards.step_scorer import Rules, StepScorer

TINY = ["runner.max_epochs=1", "actor.model.arch=resnet10", "actor.model.width=8", "actor.model.hidden_dim=8"]
PIXELS = 16


def store_of(folder: Path, count: int = 6, *, black: bool = False) -> EpisodeStore:
    store = EpisodeStore(folder)
    for seed in range(count):
        episode = make_episode(9, pixels=PIXELS, seed=seed, success_from=5 if seed % 2 else None, id=f"e{seed}")
        episode = replace(episode, signals={})
        if black:
            views = {**episode.observations, "main_images": np.zeros_like(episode.observations["main_images"])}
            episode = replace(episode, observations=views)
        store.append(episode)
    return store


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was calibrated on a validation that does not show it to be better than chance."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    spec = ModelSpec(arch="resnet10", width=8, hidden_dim=8, image_size=PIXELS, cameras=("front", "side"))
    net = build(spec).eval()
    images = np.random.default_rng(0).integers(0, 256, (16, 2, PIXELS, PIXELS, 3), dtype=np.uint8)
    reference = Reference.of(embed(net, images), images)
    measured = {"auroc": 0.44, "auroc_low": 0.31, "auroc_high": 0.58}
    Artifact(net, Calibration(measured=measured, target_episode_fpr=0.01), {}, reference).save(folder / "model")
    return folder / "model"


def verbs(store: Path, model: Path, out: Path) -> dict[str, list[str]]:
    return {
        "ls": ["episodes", "ls", str(store)],
        "check": ["episodes", "check", str(store)],
        "compare": ["compare", str(model), str(model), str(store)],
        "train": ["train", str(store), "--out", str(out / "run"), *TINY],
        "audit": ["audit", str(model), str(store), "--out", str(out / "report")],
        "frames": ["dataset", "frames", "--raw-data-path", str(store), "--output-dir", str(out / "frames")],
        "windows": ["dataset", "windows", "--raw-data-path", str(store), "--output-dir", str(out / "windows")],
    }


VERBS = pytest.mark.parametrize("verb", ["ls", "train", "audit", "compare", "frames", "windows"])


def said_by(line: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(line) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("verb", ["ls", "check", "train", "audit", "frames", "windows"])
def test_black_pictures(verb: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store_of(tmp_path / "good")
    assert "pictures of" not in said_by(verbs(tmp_path / "good", model, tmp_path / "a")[verb], capsys)
    store_of(tmp_path / "black", black=True)
    said = said_by(verbs(tmp_path / "black", model, tmp_path / "b")[verb], capsys)
    assert said.count("pictures of front are black in 6 of 6 episodes (") == 1 and "check the camera" in said


@VERBS
def test_a_truncated_file(verb: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = store_of(tmp_path / "store", 8)
    path = store.path(list(store.rows)[3])
    path.write_bytes(path.read_bytes()[:-100])
    said = said_by(verbs(store.root, model, tmp_path)[verb], capsys)
    assert said.count("1 of 8 episode files cannot be read and are left out:") == 1
    assert said.count(str(path)) == 1 and f"`referee episodes check {store.root}`" in said


def test_a_truncated_file_is_neither_merged_nor_converted_and_view_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    store = store_of(tmp_path / "store")
    path = store.path(next(iter(store.rows)))
    path.write_bytes(path.read_bytes()[:-100])
    for line in (["merge", str(store.root), "--out"], ["convert", str(store.root)]):
        assert main(["episodes", *line, str(tmp_path / "out")]) == 2
        assert str(path) in capsys.readouterr().err and not (tmp_path / "out").exists()
    caplog.clear()
    assert main(["episodes", "view", str(store.root), "--out", str(tmp_path / "strip.png")]) == 0
    assert len(caplog.messages) == 1 and str(path) in caplog.messages[0]


@pytest.mark.parametrize(("success_from", "word"), [(None, "success"), (0, "failure")])
def test_a_single_label(
    success_from: int | None, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = EpisodeStore(tmp_path / "store")
    store.append_many([make_episode(9, pixels=8, seed=seed, success_from=success_from) for seed in range(30)])
    said = said_by(["episodes", "ls", str(store.root)], capsys)
    assert f"a model cannot learn what {word} looks like" in said and "of 160 labelled frames" in said
    assert main(["train", str(store.root), "--out", str(tmp_path / "run"), *TINY]) == 2
    assert f"the data has no {word} frame" in capsys.readouterr().err
    store.append(make_episode(9, pixels=8, seed=99, success_from=5))
    assert "cannot learn" not in said_by(["episodes", "ls", str(store.root)], capsys)


def test_black_frames_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    for name, count in (("train", 80), ("val", 40)):
        images = random.integers(0, 256, (count, 2, PIXELS, PIXELS, 3), dtype=np.uint8)
        images[1:, 1] = 0
        with PayloadWriter(tmp_path / f"{name}.pt") as writer:
            writer.add(images, np.arange(count) % 2)
            writer.finish({"cameras": ["front", "wrist"]})
    said = said_by(["train", str(tmp_path), "--out", str(tmp_path / "run"), *TINY], capsys)
    assert "pictures of wrist are black in most of 64 sampled training frames of 80" in said
    assert "pictures of wrist are black in most of 40 sampled validation frames of 40" in said
    assert "pictures of front" not in said


def test_labels_of_chance(tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    """Noise with labels that have nothing to do with it: the best of its training is told not to be good."""
    store_of(tmp_path / "store", 12)
    with caplog.at_level(logging.WARNING):
        assert main(["train", str(tmp_path / "store"), "--out", str(tmp_path / "run"), *TINY]) == 0
    folder = tmp_path / "run" / "checkpoints" / "best_model"
    assert sum("chance on its validation (AUROC 0." in line and str(folder) in line for line in caplog.messages) == 1
    measured = json.loads((folder / "calibration.json").read_text())["measured"]
    assert measured["auroc_low"] <= 0.5 and 0 <= measured["auroc"] <= measured["auroc_high"] <= 1
    caplog.clear()
    train = ["train", str(tmp_path / "store"), "--out", str(tmp_path / "blind"), "data.val_split=0", *TINY]
    assert main(train) == 0
    assert any("trained without validation" in line for line in caplog.messages)


def test_a_doubtful_model_is_told_by_the_audit_on_its_card_and_where_it_rewards(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    store_of(tmp_path / "store")
    words = "is worse than chance on its validation (AUROC 0.440 [0.310, 0.580])"
    said = said_by(["audit", str(model), str(tmp_path / "store"), "--out", str(tmp_path / "report")], capsys)
    assert said.count(words) == 1 and "on these episodes it cannot be told from chance: frame AUROC" in said
    assert words in (tmp_path / "report" / "report.html").read_text()
    assert any(words in note for note in json.loads((tmp_path / "report" / "metrics.json").read_text())["notes"])
    artifact = Artifact.load(model)
    caplog.clear()
    StepScorer(artifact, 1, Rules())
    assert len(caplog.messages) == 1 and words in caplog.messages[0] and str(model) in caplog.messages[0]
    caplog.clear()
    artifact.calibration = replace(artifact.calibration, measured={"auroc": 0.9, "auroc_low": 0.8, "auroc_high": 1.0})
    StepScorer(artifact, 1, Rules())
    assert not caplog.messages
