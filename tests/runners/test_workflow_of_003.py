"""The complete workflow of the guide to learned rewards, as written there: three commands in one folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

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
    """The configuration of the guide as it stands there, without anything of ours below it."""
    config = (ROOT / "tests/documented/guides/blocks/003_train.yaml").read_text()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/train_reward_model.yaml").write_text(config)
    make_trajectories(tmp_path / "reward_data")
    small = ["reward.num_epochs=1", "runner.output_dir=results", "actor.model.width=4", "actor.encoder_warmup_steps=1"]
    where = ["--config-path", "mine", "--config-name", "train_reward_model"]
    command = [sys.executable, str(ROOT / "examples/embodiment/main_reward.py"), *where, *small]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "results/reward-model-training/checkpoints/reward_model_best.pt").is_file()


def make_trajectories(folder: Path) -> None:
    """Eight trajectories of five frames: bright ones are successes."""
    rng = np.random.default_rng(0)
    for kind, labels in (("positive", [0, 0, 1, 1, 1]), ("negative", [0] * 5)):
        (folder / kind).mkdir(parents=True)
        for number in range(4):
            light = np.array(labels, np.float32)[:, None, None, None]
            images = rng.uniform(0, 0.5, (5, 3, 64, 64)).astype(np.float32) + 0.5 * light
            said = {"images": {"base_camera": images}, "labels": np.array(labels, np.float32)}
            np.save(folder / kind / f"{number:06d}.npy", said, allow_pickle=True)  # type: ignore[arg-type]
