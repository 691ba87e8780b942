"""The documented way at an arm, by its front doors, on the twin: collect at a pose, process, train, teleoperate."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from referee.episodes.formats.detect import read_any

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
    assert all(each.success is not None and each.success[-4:].all() and not each.success[0] for each in kept)
    door("reward/run_reward_training.sh", "--data", str(run / "collected_data"), "data.fail_success_ratio=3.0",
         "runner.max_epochs=2", "actor.model.width=4", "actor.num_threads=1", "actor.global_batch_size=32",
         f"runner.logger.log_path={tmp_path / 'model'}")  # fmt: skip
    model = tmp_path / "model" / "checkpoints" / "best_model"
    arguments = [*TWIN, "env@env.eval=realworld_peg_insertion", "runner.max_steps=8", "reward.late_seconds=20",
                 f"reward.model.model_path={model}", f"runner.logger.log_path={tmp_path / 'teleop'}"]  # fmt: skip
    said = door("reward/run_realworld_teleop.sh", "realworld_teleop", *arguments)
    assert len(re.findall(r"^Step \d+ \| rm_reward: [01] \| success: (?:True|False) \| probability: ", said, re.M)) == 8
