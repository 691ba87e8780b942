"""The complete workflow of the guide to learned rewards, as written there: three commands in one folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from referee.models import Artifact
from referee.models.resnet import ResNet
from referee.training import checkpoint

ROOT = Path(__file__).parents[2]
SMALL = ["env.train.task=Reach", "env.train.num_envs=8", "env.eval.num_envs=4", "runner.eval_episodes=4",
         "runner.max_steps=1200", "runner.film=false", "algorithm.rollout_steps=50", "algorithm.update_epochs=1",
         "env.train.obs_mode=state", "env.eval.obs_mode=state", "actor.model.model_type=mlp"]  # fmt: skip
A_LITTLE_SKILL = ["algorithm.bc_warmup.episodes=4", "algorithm.bc_warmup.epochs=14"]


def run(folder: Path, script: str, *arguments: str) -> str:
    command = ["sh", str(ROOT / "examples/embodiment" / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, f"{' '.join(arguments)}: {done.stdout} {done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_the_three_commands(tmp_path: Path) -> None:
    run(tmp_path, "run_embodiment.sh", "panda_ppo_cnn", "reward.collect_data=True", "reward.use_reward_model=False",
        *SMALL, *A_LITTLE_SKILL)  # fmt: skip
    for kind in ("positive", "negative"):
        assert list((tmp_path / "reward_data" / kind).glob("*.npy")), kind
    run(tmp_path, "train_reward_model.sh", "train_reward_model", "reward.data.positive_dir=./reward_data/positive",
        "reward.data.negative_dir=./reward_data/negative", "actor.model.width=8", "reward.num_epochs=2",
        "reward.save_dir=./checkpoints")  # fmt: skip
    said = run(tmp_path, "run_embodiment.sh", "panda_ppo_cnn", "reward.use_reward_model=True",
               "reward.collect_data=False", "reward.reward_model.checkpoint_path=./checkpoints/reward_model_best.pt",
               "runner.logger.log_path=./paid", *SMALL)  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "paid/metrics.jsonl").read_text().splitlines()]
    assert any("reward/model_success" in line for line in lines), said


@pytest.mark.slow
def test_the_guides_file_alone_is_enough(tmp_path: Path) -> None:
    """The configuration of the guide as it stands there, by its own command; nothing of ours is below it.

    The encoder is given, as the guide recommends; without one it would learn first, which takes a minute more.
    """
    project = tmp_path / "project"
    (project / "examples/embodiment/config").mkdir(parents=True)
    text = (ROOT / "tests/documented/guides/blocks/003_train.yaml").read_text()
    assert "num_epochs: 100\n" in text and "save_interval: 1000\n" in text
    (project / "examples/embodiment/config/train_reward_model.yaml").write_text(text)
    make_trajectories(project / "reward_data", count=11, repeat=4)
    where = ["--config-path", "examples/embodiment/config", "--config-name", "train_reward_model"]
    torch.save(ResNet("resnet10").state_dict(), project / "resnet10_pretrained.pt")  # "optional but recommended"
    encoder = "reward.model.pretrained_encoder_path=./resnet10_pretrained.pt"
    command = [sys.executable, str(ROOT / "examples/embodiment/main_reward.py"), *where, encoder]
    done = subprocess.run(command, capture_output=True, text=True, cwd=project, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "binary_classifier resnet10, width 64" in done.stdout
    saved = tmp_path / "results/reward-model-training/checkpoints"  # ../results, from where the command was typed
    steps = sorted(int(path.name.removeprefix("step_")) for path in saved.glob("step_*"))
    assert steps[0] == 1000 and all(step % 1000 == 0 for step in steps[:-1]), steps  # by steps; and the last one
    values = torch.load(saved / "step_1000/checkpoint.pt", weights_only=True)
    assert {"epoch", "model_state_dict", "optimizer_state_dict", "train_loss", "train_acc"} <= values.keys()
    assert values["step"] == 1000 and values["epoch"] == 1000 // values["steps_per_epoch"]
    frames = np.stack([np.full((64, 64, 3), light, np.uint8) for light in (60, 190)])
    probability = Artifact.open(saved / "step_1000/checkpoint.pt").judge(frames).probability
    assert probability is not None and probability[0] < 0.5 < probability[1]
    (run,) = (tmp_path / "results").glob("*-reward-model-training")
    assert checkpoint.find(run).resolve() == (saved / f"step_{steps[-1]}").resolve()
    assert (saved / "reward_model_best.pt").is_file()


def make_trajectories(folder: Path, count: int = 4, repeat: int = 1) -> None:
    """So many trajectories of each kind: bright frames are successes."""
    rng = np.random.default_rng(0)
    for kind, labels in (("positive", [0, 0, 1, 1, 1] * repeat), ("negative", [0] * 5 * repeat)):
        (folder / kind).mkdir(parents=True)
        for number in range(count):
            light = np.array(labels, np.float32)[:, None, None, None]
            images = rng.uniform(0, 0.5, (len(labels), 3, 64, 64)).astype(np.float32) + 0.5 * light
            said = {"images": {"base_camera": images}, "labels": np.array(labels, np.float32)}
            np.save(folder / kind / f"{number:06d}.npy", said, allow_pickle=True)  # type: ignore[arg-type]
