"""The complete workflow of the guide to learned rewards, as written there: three commands in one folder."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

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
