"""The presets of the documents on ManiSkill, each run once with small sizes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from referee.cli import main
from referee.config import load
from referee.episodes.formats.detect import read_any
from referee.models import Artifact, Calibration, ModelSpec, Reference, build
from referee.models.artifact import embed

pytestmark = [pytest.mark.slow, pytest.mark.maniskill]
SMALL = [
    f"env.{name}.{line}"
    for name in ("train", "eval")
    for line in ("num_envs=2", "num_workers=1", "max_episode_steps=4", "shader=unlit", "light_scene=true",
                 "image_size=64", "task=PushCube-v1")
]  # fmt: skip
BRIEF = [
    "runner.eval_episodes=2", "runner.eval_interval=1", "actor.num_threads=1", "actor.model.hidden_dims=[8]",
]  # fmt: skip
PPO = ["algorithm.rollout_steps=8", "actor.global_batch_size=16", "runner.max_steps=32", "algorithm.update_epochs=1"]
SAC = ["runner.max_steps=40", "algorithm.random_steps=10", "actor.global_batch_size=8", "runner.background.max_lag=40"]


def run(preset: str, folder: Path, *lines: str) -> dict[str, float]:
    assert main(["run", preset, *SMALL, *BRIEF, f"runner.logger.log_path={folder}", *lines]) == 0
    result: dict[str, float] = json.loads((folder / "result.json").read_text())
    return result


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model that nobody trained."""
    torch.manual_seed(0)
    net = build(ModelSpec(arch="resnet10", width=4, image_size=64, cameras=("base_camera", "side"), hidden_dim=8))
    frames = np.random.default_rng(0).integers(0, 255, (16, 2, 64, 64, 3), dtype=np.uint8)
    reference = Reference.of(embed(net.eval(), frames), frames).calibrated(embed(net, frames))
    folder = tmp_path_factory.mktemp("model") / "artifact"
    Artifact(net, Calibration(threshold=0.5), {}, reference).save(folder)
    return folder


def test_ppo_and_going_on_and_judging(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("maniskill_ppo_mlp", tmp_path / "a", *PPO)["steps"] == 32
    again = run("maniskill_ppo_mlp", tmp_path / "b", *PPO, "runner.max_steps=48", f"runner.resume_dir={tmp_path / 'a'}")
    assert again["steps"] == 48
    assert main(["eval", str(tmp_path / "b"), "--episodes", "2"]) == 0
    assert "success at the end" in capsys.readouterr().out


def test_ppo_on_images(tmp_path: Path) -> None:
    assert run("maniskill_ppo_cnn", tmp_path, *PPO)["steps"] == 32


def test_collecting_while_training(tmp_path: Path) -> None:
    place = f"env.train.data_collection.save_dir={tmp_path / 'data'}"
    run("maniskill_collect_reward_data", tmp_path / "run", *PPO, place, "algorithm.bc_warmup.episodes=2")
    episodes = list(read_any(tmp_path / "data"))
    assert len(episodes) == 8
    assert all(episode.observations["main_images"].shape == (5, 64, 64, 3) for episode in episodes)


def test_collecting_while_evaluating(tmp_path: Path) -> None:
    run("maniskill_ppo_mlp_qwentrend_collect", tmp_path, *PPO, "runner.max_steps=16")
    assert len(list((tmp_path / "collected_data").rglob("*.pkl"))) >= 2


def test_a_reward_model_pays_ppo(tmp_path: Path, model: Path) -> None:
    run("maniskill_ppo_mlp_resnet_reward", tmp_path, *PPO, f"reward.model.model_path={model}")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert any("reward/hacking_gap" in line for line in lines)


def test_a_reward_model_pays_sac_side_by_side(tmp_path: Path, model: Path) -> None:
    result = run("maniskill_sac_mlp_resnet_reward_async", tmp_path, *SAC, f"reward.model.model_path={model}")
    assert result["steps"] >= 40


def test_demonstrations_and_rlpd(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The expert's episodes, recorded by one command, are what RLPD begins with."""
    small = [line for line in SMALL if line.startswith("env.eval.") and "max_episode_steps" not in line]
    record = ["env.eval.data_collection.enabled=true", f"env.eval.data_collection.save_dir={tmp_path / 'demos'}"]
    log = f"runner.logger.log_path={tmp_path / 'expert'}"
    assert main(["run", "maniskill_expert", *small, "runner.num_episodes=2", *record, log]) == 0
    assert "success at the end 100.0 %" in capsys.readouterr().out
    demos = f"algorithm.demos.path={tmp_path / 'demos'}"
    short = ["runner.max_steps=40", "actor.global_batch_size=8", "algorithm.settle_steps=0", "algorithm.utd=1"]
    assert run("maniskill_rlpd_mlp", tmp_path / "rlpd", *short, demos)["steps"] == 40


def test_a_film_of_the_expert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    film = tmp_path / "film.gif"
    assert main(["play", "--task", "PushCube-v1", "--episodes", "1", "--size", "64", "--out", str(film)]) == 0
    assert "success 1 of 1" in capsys.readouterr().out and film.stat().st_size > 10_000


def test_a_reward_model_of_what_was_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes in the documents' layout, under $EMBODIED_PATH/data, become the documents' reward_model_best.pt."""
    there = tmp_path / "examples" / "embodiment"
    monkeypatch.setenv("EMBODIED_PATH", str(there))
    monkeypatch.chdir(tmp_path)
    small = [line for line in SMALL if line.startswith("env.eval.") and "max_episode_steps" not in line]
    record = ["enabled=true", f"save_dir={there / 'data'}", "export_format=pickle_frames"]
    lines = [*small, *(f"env.eval.data_collection.{line}" for line in record), "env.eval.num_envs=6",
             "env.eval.max_episode_steps=30", "env.eval.cameras=[front]"]  # fmt: skip
    assert main(["run", "maniskill_expert", *lines, "runner.num_episodes=6", "runner.expert_noise=0.1"]) == 0
    brief = ["runner.max_epochs=1", "actor.model.arch=resnet10", "actor.model.image_size=64", "actor.model.width=8"]
    assert main(["run", "maniskill_train_resnet_reward", *brief]) == 0
    assert (tmp_path / "logs/reward_checkpoints/reward_model_best.pt").exists()
    assert (
        load("maniskill_ppo_mlp_resnet_reward").config.reward.model.model_path
        == "logs/reward_checkpoints/best_model.pt"
    )
    paid = ["env.train.cameras=[front]", "env.eval.cameras=[front]"]
    assert run("maniskill_ppo_mlp_resnet_reward", tmp_path / "paid", *PPO, *paid)["steps"] == 32


def test_a_vision_language_model_pays_ppo(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from referee.models.vlm.tiny import TinyOptions, tiny_init

    tiny_init(tmp_path / "tiny", TinyOptions(hidden=64, layers=2, vision_hidden=64, vision_depth=2))
    window = "reward.model.history_buffers.history_window"
    lines = [f"reward.model.model_path={tmp_path / 'tiny'}", f"{window}.history_size=3", f"{window}.min_history_size=3",
             f"{window}.input_interval=2"]  # fmt: skip
    assert run("maniskill_ppo_mlp_qwentrend_reward", tmp_path / "run", *PPO, *lines)["trend"]
