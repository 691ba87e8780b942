"""train, audit, compare and score, from the command line, on small recorded episodes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from referee import train_reward_model
from referee.checksums import read_json
from referee.cli import main
from referee.episodes import Episode, EpisodeStore, Meta
from referee.models.artifact import Artifact

ROOT = Path(__file__).parents[2]
SMALL = ["actor.model.width=8", "actor.augment.random_shift=1", "runner.logger.logger_backends=[]"]


def episode(seed: int, *, pixels: int = 32, states: int = 12, cameras: tuple[str, ...] = ("front", "side")) -> Episode:
    """A dark square moves over noise; where it arrives, it turns bright: that is success. Odd ones never arrive."""
    random = np.random.default_rng(seed)
    images = random.integers(0, 90, (states, len(cameras), pixels, pixels, 3)).astype(np.uint8)
    success = np.zeros(states, bool)
    if seed % 2 == 0:
        success[random.integers(states // 2, states - 1) :] = True
    for state in range(states):
        place = 4 + 2 * state % (pixels - 12)
        images[state, :, 8:16, place : place + 8] = (40, 255, 40) if success[state] else (120, 60, 60)
    ended = np.arange(states - 1) == states - 2
    observations = {"main_images": images[:, 0]}
    if len(cameras) > 1:
        observations["extra_view_images"] = images[:, 1:]
    return Episode(
        observations,
        np.zeros((states - 1, 4), np.float32),
        np.zeros(states - 1, np.float32),
        np.zeros(states - 1, bool),
        ended,
        success,
        meta=Meta(id=f"e{seed:04d}", task="test", source="test", cameras=cameras),
    )


def fill(folder: Path, seeds: range, **options: object) -> Path:
    EpisodeStore(folder).append_many([episode(seed, **options) for seed in seeds])  # type: ignore[arg-type]
    return folder


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """episodes/ to learn from, fresh/ to be judged on, run/ with a trained model."""
    root = tmp_path_factory.mktemp("world")
    fill(root / "episodes", range(40))
    fill(root / "fresh", range(100, 130))
    lines = ["train", str(root / "episodes"), "--out", str(root / "run"), *SMALL, "runner.max_epochs=4"]
    assert main(lines) == 0
    return root


def line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The only line of an error, with exit code 2."""
    capsys.readouterr()
    assert main(list(arguments)) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("referee: ") and "\n" not in said
    return said


def test_training_leaves_a_calibrated_artifact(world: Path) -> None:
    artifact = Artifact.load(world / "run/checkpoints/best_model")
    calibration = artifact.calibration
    assert calibration.target_episode_fpr == 0.01
    assert calibration.measured["validation_episodes"] == 8
    assert calibration.measured["detected_episodes"] == calibration.measured["success_episodes"] == 4
    assert len(artifact.provenance["episodes"]["train"]) == 32
    assert not set(artifact.provenance["episodes"]["train"]) & set(artifact.provenance["episodes"]["val"])
    assert (world / "run/metrics.jsonl").exists() and (world / "run/config.yaml").exists()
    assert list((world / "run/checkpoints").glob("step_*/checkpoint.pt"))


def test_audit_writes_a_report_card(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = world / "run/checkpoints/best_model"
    assert main(["audit", str(model), str(world / "fresh")]) == 0
    said = capsys.readouterr().out
    assert "detects 15 of 15 successes" in said and "failing episodes" in said
    found = json.loads((model / "report/metrics.json").read_text())
    assert found["estimates"]["auroc"]["value"] > 0.99
    assert found["counts"]["episodes"] == 30 and found["counts"]["failing_episodes"] == 15
    assert set(found["without_camera"]) == {"front", "side"}
    page = (model / "report/report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page
    Artifact.load(model)  # the report beside it does no harm


def test_episodes_of_training_are_refused(world: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model, data = str(world / "run/checkpoints/best_model"), str(world / "episodes")
    assert "trained on 32 of these 40 episodes" in line(capsys, "audit", model, data, "--out", str(tmp_path))
    assert not list(tmp_path.iterdir())
    assert main(["audit", model, data, "--out", str(tmp_path), "--skip-training-episodes"]) == 0
    assert json.loads((tmp_path / "metrics.json").read_text())["counts"]["episodes"] == 8
    assert main(["audit", model, data, "--out", str(tmp_path), "--allow-training-episodes"]) == 0
    assert json.loads((tmp_path / "metrics.json").read_text())["tainted_by_training_episodes"]


def test_the_same_films_under_new_ids_are_refused(
    world: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Imported once more, whole or in half: no id tells it, the frames do."""
    model, first = str(world / "run/checkpoints/best_model"), EpisodeStore(world / "episodes")
    trained = set(Artifact.load(Path(model)).provenance["episodes"]["train"])
    again, half = EpisodeStore(tmp_path / "again"), EpisodeStore(tmp_path / "half")
    for number, each in enumerate(first):
        unnamed = replace(each, meta=replace(each.meta, id=f"new{number}" if each.meta.id in trained else each.meta.id))
        again.append(unnamed)
        if each.meta.id in trained:
            half.append(first_half(unnamed))
    for data, count in (("again", "32 of these 40"), ("half", "32 of these 32")):
        assert f"trained on {count} episodes (as new0)" in line(capsys, "audit", model, str(tmp_path / data))
    report = ["--out", str(tmp_path / "report"), "--skip-training-episodes"]
    assert main(["audit", model, str(tmp_path / "again"), *report]) == 0
    assert "8 of the episodes chose the model" in capsys.readouterr().out.replace("\n", " ")
    assert main(["compare", model, model, str(tmp_path / "again")]) == 0
    assert "8 episodes" in capsys.readouterr().out
    assert "neither model was trained on" in line(capsys, "compare", model, model, str(tmp_path / "half"))
    assert main(["episodes", "convert", str(world / "episodes"), str(tmp_path / "npy"), "--format", "npy"]) == 0
    assert "trained on 32 of these 40 episodes" in line(capsys, "audit", model, str(tmp_path / "npy"))


def first_half(each: Episode) -> Episode:
    """Of an episode, the first six states."""
    assert each.success is not None
    return Episode(
        {name: array[:6] for name, array in each.observations.items()},
        each.actions[:5], each.rewards[:5], each.terminated[:5], np.arange(5) == 4, each.success[:6], meta=each.meta,
    )  # fmt: skip


def test_compare_with_itself_finds_nothing(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(world / "run/checkpoints/best_model")
    assert main(["compare", model, model, str(world / "fresh")]) == 0
    said = capsys.readouterr().out
    assert "30 episodes" in said and "is better" not in said


def test_score_says_what_the_audit_says(world: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = str(world / "run/checkpoints/best_model")
    assert main(["score", model, str(world / "fresh"), "--gif", str(tmp_path / "a.gif")]) == 0
    rows = [row.split() for row in capsys.readouterr().out.splitlines() if row.startswith("e0")]
    assert len(rows) == 30
    for row in rows:
        assert ("never" in row) == (int(row[0][1:]) % 2 == 1)
    with Image.open(tmp_path / "a.gif") as film:
        assert film.n_frames == 12  # type: ignore[attr-defined]


def test_score_of_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path / "episodes", range(30), cameras=("front",))
    assert main(["train", str(tmp_path / "episodes"), "--out", str(tmp_path / "run"), *SMALL]) == 0
    one = episode(200, cameras=("front",))
    (tmp_path / "pictures").mkdir()
    for state, image in enumerate(one.observations["main_images"]):
        Image.fromarray(image).save(tmp_path / f"pictures/{state:03d}.png")
    model = tmp_path / "run/checkpoints/best_model"
    capsys.readouterr()
    assert main(["score", str(model), str(tmp_path / "pictures")]) == 0
    rows = [row.split() for row in capsys.readouterr().out.splitlines() if ".png" in row]
    expected = Artifact.load(model).judge(one.observations["main_images"]).probability
    assert expected is not None
    assert [float(row[0]) for row in rows] == pytest.approx(expected, abs=6e-5)


def test_a_run_that_was_stopped_goes_on(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Resuming the finished run at its last step changes nothing but the place."""
    arguments = ["train", str(world / "episodes"), "--out", str(tmp_path / "run"), *SMALL, "runner.max_epochs=4"]
    assert main([*arguments, f"runner.resume_dir={world / 'run'}"]) == 0
    first, second = (Artifact.load(root / "run/checkpoints/best_model") for root in (world, tmp_path))
    images = np.stack([episode(300).observations["main_images"], episode(300).view("side")], 1)
    assert np.array_equal(first.logits(images), second.logits(images))


@pytest.mark.slow
def test_front_doors(world: Path, tmp_path: Path) -> None:
    """The scripts that the documents name, on recorded data."""
    assert main(["episodes", "convert", str(world / "episodes"), str(tmp_path / "npy"), "--format", "npy"]) == 0
    python = [sys.executable]
    doors: dict[str, list[str]] = {
        "module": [
            *python, "-m", "referee.train_reward_model", "--positive-dir", str(tmp_path / "npy/positive"),
            "--negative-dir", str(tmp_path / "npy/negative"), "--output-checkpoint", str(tmp_path / "out/model.pt"),
            "--image-size", "3", "32", "32", "--width", "8", "--epochs", "2", "--visualize-positive",
            "--vis-output-dir", str(tmp_path / "vis"),
        ],
        "reward_training.sh": [
            "sh", str(ROOT / "examples/reward/run_reward_training.sh"), "--data", str(world / "episodes"),
            "actor.model.width=8", "runner.max_epochs=4", f"runner.logger.log_path={tmp_path / 'a'}",
            f"data.debug_save_dir={tmp_path / 'debug'}",
        ],
        "train_reward_model.sh": [
            "sh", str(ROOT / "examples/embodiment/train_reward_model.sh"), "train_reward_model",
            f"reward.data.positive_dir={tmp_path / 'npy/positive'}",
            f"reward.data.negative_dir={tmp_path / 'npy/negative'}", "reward.num_epochs=2",
            "actor.model.width=8", f"runner.logger.log_path={tmp_path / 'b'}", f"reward.save_dir={tmp_path / 'pt'}",
        ],
        "main_reward.py": [
            *python, str(ROOT / "examples/embodiment/main_reward.py"), "--config-name", "reward_training",
            f"data.data_path={world / 'episodes'}", "actor.model.width=8", "runner.max_epochs=1",
            f"runner.logger.log_path={tmp_path / 'c'}",
        ],
        "reward_training.only": [
            *python, "-m", "referee.cli", "run", "panda_ppo_mlp", "reward_training.only=True",
            f"reward_training.data_path={world / 'episodes'}", "reward_training.epochs=1", "actor.model.width=8",
            f"runner.logger.log_path={tmp_path / 'd'}",
        ],
    }  # fmt: skip
    for name, command in doors.items():
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 0, f"{name}: {done.stdout} {done.stderr}"
    assert Artifact.open(tmp_path / "out/model.pt").model.spec.model_type == "binary_classifier"
    assert (tmp_path / "pt/reward_model_best.pt").exists() and (tmp_path / "pt/best_model.pt").exists()
    assert len(list((tmp_path / "vis").glob("positive_*_frame*.png"))) > 40
    assert list((tmp_path / "debug/validation/resnet_success").glob("*_prob*.png"))
    for run in "abcd":
        Artifact.load(tmp_path / run / "checkpoints/best_model")


def test_bad_input_is_one_line(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = world / "run/checkpoints/best_model"
    fresh = str(world / "fresh")

    def copy(name: str) -> Path:
        return Path(shutil.copytree(model, tmp_path / name))

    assert "is not there" in line(capsys, "train", str(tmp_path / "none"))
    fill(tmp_path / "losers", range(1, 21, 2))
    assert "success" in line(capsys, "train", str(tmp_path / "losers"), "--out", str(tmp_path / "run"), *SMALL)
    fill(tmp_path / "single", range(200, 220), cameras=("front",))
    assert "side" in line(capsys, "audit", str(model), str(tmp_path / "single"))
    fill(tmp_path / "larger", range(300, 304), pixels=48)
    assert "48x48 px, but the model takes 32x32" in line(capsys, "audit", str(model), str(tmp_path / "larger"))

    newer = copy("newer")
    config = read_json(newer / "config.json")
    (newer / "config.json").write_text(json.dumps({**config, "version": 99}))
    assert "version 99" in line(capsys, "audit", str(newer), fresh)
    cut = copy("cut")
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:1000])
    assert "model.safetensors: is cut off or has changed" in line(capsys, "audit", str(cut), fresh)
    odd = copy("odd")
    calibration = read_json(odd / "calibration.json")
    (odd / "calibration.json").write_text(json.dumps({**calibration, "threshold": 1.5}))
    assert "calibration.json: threshold is 1.5, but it must be in 0..1" in line(capsys, "audit", str(odd), fresh)
    assert "no artifact" in line(capsys, "audit", str(tmp_path / "none"), fresh)
    assert "looks at 2 cameras" in line(capsys, "score", str(model), str(tmp_path / "none.png"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "nowhere", "--out", "run"], "data_path nowhere is not there"),
        (["run", "reward_training", "data.train_data_paths=no.pt"], "train_data_paths no.pt is not there"),
        (["run", "train_reward_model", "data.positive_dir=.", "data.negative_dir=no"], "negative_dir no is not there"),
        (["run", "reward_training", "data.data_path=.", "actor.model.pretrained=no.pt"], "encoder no.pt is not there"),
        (["run", "reward_training", "data.data_path=.", "actor.model.model_path=no"], "model_path no is not there"),
    ],
)
def test_a_path_that_is_not_there_leaves_nothing_behind(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert says in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_the_older_command_looks_for_its_encoder_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--positive-dir", ".", "--negative-dir", ".", "--output-checkpoint", "out/model.pt"]
    assert train_reward_model.main([*words, "--pretrained-encoder-path", "no.pt", "--visualize-positive"]) == 2
    assert "no.pt is not there" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_an_ensemble_is_trained_and_audited_like_any_other(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four epochs of three heads on one encoder: as good on fresh episodes as one head, and in one artifact."""
    lines = ["train", str(world / "episodes"), "--out", str(world / "three"), *SMALL, "runner.max_epochs=4"]
    assert main([*lines, "ensemble=3", "actor.model.std_weight=0.5"]) == 0
    artifact = world / "three/checkpoints/best_model"
    assert Artifact.load(artifact).spec.options == {"members": 3, "std_weight": 0.5}
    capsys.readouterr()
    assert main(["audit", str(artifact), str(world / "fresh"), "--out", str(world / "three_card")]) == 0
    assert "AUROC" in capsys.readouterr().out
    fresh = list(EpisodeStore(world / "fresh"))
    images = np.concatenate([np.stack([each.view(name) for name in ("front", "side")], 1) for each in fresh])
    logits, true = Artifact.load(artifact).logits(images), np.concatenate([each.success for each in fresh])  # type: ignore[misc]
    assert logits[true].mean() > logits[~true].mean() + 1
