"""Runs on an arm's twin: demonstrations, training side by side, resume, judging; and the check of all devices."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from referee.cli import main
from referee.config import FrankaEnvConfig, RobotConfig, load
from referee.envs.franka import setup
from referee.envs.franka.env import FrankaVectorEnv
from referee.episodes.store import EpisodeStore
from referee.errors import MissingDependency
from referee.learn.environments import stand_in
from referee.recipes import robot_check
from referee.robots.cameras import CameraError
from referee.robots.clock import SimulatedClock
from referee.robots.spacemouse import Motion, ScriptedInput
from referee.robots.twin import Twin, TwinCamera
from referee.runs.logbook import read_metrics
from referee.sim.scene import Scene

PRESET = "realworld_peginsertion_rlpd_cnn_async"
TWIN = ["robot.driver=twin", "robot.realtime=false"]
TARGET = "[0.5,0,0.084,-3.14,0,0]"


def test_devices_of_a_twin_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["robot", "check", PRESET, *TWIN, f"env.train.target_ee_pose={TARGET}"]) == 0
    said = capsys.readouterr().out
    assert "0.40..0.60 × -0.10..0.10 × 0.05..0.28 m" in said
    assert said.count("20 new frames in 20 steps") == 2 and "✗" not in said


def test_the_check_names_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["robot", "check", PRESET]) == 2
    assert "robot.robot_ip is not set" in capsys.readouterr().out
    assert main(["robot", "check", PRESET, *TWIN, "env.train.robot.reply_seconds=0.2"]) == 2
    said = capsys.readouterr().out
    assert "200 ms" in said and "real-time kernel" in said
    assert main(["robot", "check", "panda_expert"]) == 2
    assert "this preset has no arm" in capsys.readouterr().err


REAL = ["robot.robot_ip=1.2.3.4", 'env.train.camera_serials=["11","22"]', f"env.train.target_ee_pose={TARGET}"]


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A real arm, and RealSense cameras by serial number; those in the dict cannot be opened, for that reason."""
    twin, missing = Twin(Scene(), SimulatedClock(), cameras=("wrist", "front")), dict[str, str]()

    def camera(name: str, serial: str, pixels: int, clock: object) -> TwinCamera:
        if serial in missing:
            raise CameraError(f"camera {name} (serial {serial}) {missing[serial]}: check its USB 3 cable")
        return twin.cameras[int(serial) // 11 - 1]

    def franky(ip: str, clock: object, **options: object) -> Twin:
        if "arm" in missing:
            raise MissingDependency(f"franky cannot be imported ({missing['arm']}): pip install it")
        return twin

    monkeypatch.setattr("referee.robots.franky.Franky", franky)
    monkeypatch.setattr(setup, "open_realsense", camera)
    monkeypatch.setattr(setup, "WallClock", lambda: twin.clock)
    monkeypatch.setattr(robot_check, "WallClock", lambda: twin.clock)
    return missing


def test_the_check_tells_the_pose_that_it_asks_for(lab: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["robot", "check", PRESET, *REAL[:2]]) == 2
    said = capsys.readouterr().out
    assert "✗ configuration    target_ee_pose is not set" in said and "✓ arm" in said
    assert "✓ pose             [0.4800, 0.0000, 0.2000, 3.1416" in said and said.count("new frames") == 2


def test_each_device_is_checked_whatever_is_wrong_with_the_others(
    lab: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    lab["11"] = "is not there, none is plugged in"
    assert main(["robot", "check", PRESET, *REAL]) == 2
    said = capsys.readouterr().out
    assert "✗ camera wrist     camera wrist (serial 11) is not there" in said
    assert "✓ workspace" in said and "✓ arm" in said and "✓ camera front" in said
    lab["arm"] = "no module"
    assert main(["robot", "check", PRESET, *REAL]) == 2
    said = capsys.readouterr().out
    assert "✗ arm              franky cannot be imported (no module)" in said and "✓ camera front" in said


def test_a_person_is_told_when_to_move_the_puck(
    lab: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(robot_check, "open_spacemouse", lambda clock: ScriptedInput([Motion(left=True)]))
    assert main(["robot", "check", PRESET, *REAL, "env.train.use_spacemouse=true"]) == 0
    said = capsys.readouterr().out
    assert said.index("move the puck now, within 10 s") < said.index("✓ SpaceMouse")


def test_a_twin_stands_in_where_the_arm_is_in_use(tmp_path: Path) -> None:
    """The learner's process must never reach for the arm that another process moves."""
    train = load(PRESET, ["robot.robot_ip=1.2.3.4"]).config.env.train
    assert isinstance(train, FrankaEnvConfig) and train.robot == RobotConfig(robot_ip="1.2.3.4")
    env = stand_in(replace(train, use_spacemouse=True), tmp_path, "train")
    assert isinstance(env, FrankaVectorEnv)
    assert env.config.robot.driver == "twin" and not env.config.robot.realtime
    assert env.reset(seed=0)[0]["states"].shape == (1, 24)
    env.close()


@pytest.mark.slow
def test_from_demonstrations_to_a_resumed_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demos, run = tmp_path / "demos", tmp_path / "run"
    expert = ["env@env.eval=realworld_peg_insertion", "runner.num_episodes=3", "env.eval.use_spacemouse=true",
              "env.eval.data_collection.enabled=true", f"env.eval.data_collection.save_dir={demos}",
              f"env.eval.target_ee_pose={TARGET}", f"runner.logger.log_path={tmp_path / 'expert'}"]  # fmt: skip
    assert main(["run", "panda_expert", *TWIN, *expert]) == 0
    for episode in EpisodeStore(demos):
        assert episode.success_at_end and episode.signals["task_success"][-1]
        assert episode.signals["intervened"][1:].all() and not episode.signals["held"].any()
        assert episode.meta.fps == 10
    small = ["env.train.obs_mode=state", "env.eval.obs_mode=state", "actor.model.model_type=mlp",
             "algorithm.settle_steps=0", f"algorithm.demos.path={demos}",
             f"env.train.target_ee_pose={TARGET}", f"runner.logger.log_path={run}",
             "algorithm.bc_warmup.epochs=5", "runner.eval_episodes=2", "actor.num_threads=1"]  # fmt: skip
    assert main(["run", PRESET, *TWIN, *small, "runner.max_steps=60"]) == 0
    first = json.loads((run / "result.json").read_text())
    assert first["steps"] >= 60 and first["episodes"] == 2
    rows = read_metrics(run)
    assert all(np.isfinite(value) for row in rows for value in row.values())
    assert main(["run", PRESET, *TWIN, *small, "runner.max_steps=160", f"runner.resume_dir={run}"]) == 0
    assert json.loads((run / "result.json").read_text())["steps"] >= 160
    assert "resuming at step" in capsys.readouterr().out
    assert main(["eval", str(run), "--episodes", "2"]) == 0
    assert "of 2" in capsys.readouterr().out
