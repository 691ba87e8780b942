"""What is said about ManiSkill without starting it: successes that no frame shows, and a driver that is missing."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from referee.config import load
from referee.envs.maniskill.tasks import unseen
from referee.learn import environments

ROOT = Path(__file__).parents[2]
PAID = ["maniskill_ppo_mlp_resnet_reward", "maniskill_sac_mlp_resnet_reward_async"]


@pytest.mark.parametrize("preset", ["maniskill_collect_reward_data", *PAID])
def test_frames_are_labelled_by_what_they_show(preset: str) -> None:
    env = load(preset).config.env
    assert (env.train.task, env.train.success, env.eval.success) == ("PickCube-v1", "visible", "task")


@pytest.mark.parametrize(
    ("task", "definition", "says"),
    [
        ("PickCube-v1", "task", "that the robot stands still, which no frame shows"),
        ("StackCube-v1", "task", "that the cube stands still"),
        ("PickCube-v1", "visible", None),
        ("PushCube-v1", "task", None),
    ],
)
def test_recording_by_a_success_that_no_frame_shows_is_said(
    task: str, definition: str, says: str | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "make_vec", lambda config, device=None: config)
    monkeypatch.setattr(environments, "collecting", lambda env, *_, **__: env)
    more = ["reward.collect_data=true", f"env.train.task={task}", f"env.train.success={definition}"]
    train = load("maniskill_ppo_cnn", more).config.env.train
    assert (unseen(task, definition) is None) == (says is None)
    with caplog.at_level(logging.WARNING):
        environments.make_env(train, Path(), "train")
    assert (says is None and not caplog.text) or (says is not None and says in caplog.text)


@pytest.mark.slow
@pytest.mark.parametrize(("variable", "outcome"), [("", "1 skipped"), ("1", "1 error")])
def test_without_a_driver_nothing_is_skipped_in_silence(variable: str, outcome: str, tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VK_", "REFEREE_"))}
    there = {**kept, "XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path), "REFEREE_NO_SKIPS": variable}
    file = "tests/envs/test_maniskill_experts.py"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-o",
        "addopts=",
        "-rsfE",
        "-p",
        "no:cacheprovider",
        file,
        "-k",
        "noise_has",
    ]
    done = subprocess.run(command, cwd=ROOT, env=there, capture_output=True, text=True, check=False)
    assert outcome in done.stdout and "ManiSkill needs" in done.stdout, done.stdout
