"""The documented way at an arm, by its front doors, on the twin: collect at a pose, process, train, teleoperate."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from referee.episodes.formats.detect import read_any
from referee.models import Artifact, Calibration, ModelSpec, build

ROOT = Path(__file__).parents[2]
TWIN = ["robot.driver=twin", "robot.realtime=false", "runner.policy=expert", "runner.expert_noise=0.5"]


def door(name: str, *arguments: str) -> str:
    program = ["sh"] if name.endswith(".sh") else [sys.executable]
    done = subprocess.run([*program, str(ROOT / "examples" / name), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_from_a_pose_to_a_live_verdict(tmp_path: Path) -> None:
    run = tmp_path / "run"
    said = door("embodiment/collect_data.sh", *TWIN, "runner.num_data_episodes=6", "env.eval.success_hold_steps=4",
                "env.eval.max_episode_steps=60", f"runner.logger.log_path={run}")  # fmt: skip
    assert "episode 6 of 6: " in said
    door("embodiment/process_realworld_data.py", str(run / "data.pkl"))
    assert len(list((run / "collected_data").glob("rank_0_env_0_episode_*.pkl"))) == 6
    kept = list(read_any(run / "collected_data"))
    held = [each.success is not None and bool(each.success[-4:].all()) for each in kept]
    assert held == [bool(each.terminated[-1]) for each in kept] and sum(held) >= 3  # four in a row end an episode
    door("reward/run_reward_training.sh", "--data", str(run / "collected_data"), "data.fail_success_ratio=3.0",
         "runner.max_epochs=2", "actor.model.width=4", "actor.num_threads=1",
         "actor.global_batch_size=32", "actor.micro_batch_size=16",
         f"runner.logger.log_path={tmp_path / 'model'}")  # fmt: skip
    model = tmp_path / "model" / "checkpoints" / "best_model"
    arguments = [*TWIN, "env@env.eval=realworld_peg_insertion", "runner.max_steps=8", "reward.late_seconds=20",
                 f"reward.model.model_path={model}", f"runner.logger.log_path={tmp_path / 'teleop'}"]  # fmt: skip
    said = door("reward/run_realworld_teleop.sh", "realworld_teleop", *arguments)
    assert (
        len(re.findall(r"^Step \d+ \| rm_reward: [01] \| success: (?:True|False) \| prob: \d\.\d{3}$", said, re.M)) == 8
    )


@pytest.mark.slow
def test_the_documents_last_step_runs_as_it_stands_there(tmp_path: Path) -> None:
    """Document 001, step 4: the keys of its block and its command; only the arm is a twin, and the run is short."""
    spec = ModelSpec(arch="resnet10", width=4, image_size=64, cameras=("wrist", "front"), hidden_dim=8)
    Artifact(build(spec).eval(), Calibration()).save(tmp_path / "best_model")
    block = yaml.safe_load((ROOT / "tests/documented/guides/blocks/001_rlpd.yaml").read_text())["reward"]
    block["checkpoint_path"] = str(tmp_path / "best_model")
    said = door(
        "embodiment/run_realworld_async.sh", "realworld_peginsertion_rlpd_cnn_async",
        *(f"reward.{name}={value}" for name, value in block.items()), *TWIN[:2],
        "runner.max_steps=20", "algorithm.bc_warmup.epochs=1", "algorithm.settle_steps=0", "actor.num_threads=1",
        "runner.eval_episodes=1", "env.eval.max_episode_steps=10", f"runner.logger.log_path={tmp_path / 'run'}",
    )  # fmt: skip
    assert "episodes end when the reward model says success for 5 steps in a row, or after 100 steps" in said
    assert (tmp_path / "run" / "result.json").exists()
