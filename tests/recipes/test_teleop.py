"""Teleoperation with a live verdict: what is shown, what ends episodes, and what a late verdict does."""

import json
import re
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from referee.collect import teleop_worker as workers
from referee.collect.teleop_worker import LiveJudge, Look, TeleopWorker
from referee.config import FrankaEnvConfig, load
from referee.config.schema import PandaEnvConfig
from referee.envs import make_vec
from referee.envs.franka.env import FrankaVectorEnv
from referee.envs.franka.setup import Setup
from referee.episodes import EpisodeStore, Meta
from referee.episodes.live import LiveRecording
from referee.errors import ConfigError, RefereeError
from referee.models import Artifact, Calibration, ModelSpec, build
from referee.recipes import run
from referee.rewards import Gate, RewardManager, RewardOptions

ROOT = Path(__file__).parents[2]
SIM = ["runner.recipe=teleop", "env.eval.num_envs=1", "env.eval.num_threads=1", "env.eval.task=Reach",
       "runner.policy=random", "reward.use_reward_model=true", "reward.reward_mode=per_step"]  # fmt: skip
TWIN = ["robot.driver=twin", "robot.realtime=false", "runner.policy=random", "env.eval.cameras=[front,side]"]


def go(folder: Path, model: Path, *overrides: str, preset: str = "panda_expert", base: list[str] = SIM) -> None:
    lines = [*base, f"reward.model.model_path={model}", f"runner.logger.log_path={folder}", *overrides]
    run(load(preset, lines))


def test_each_step_is_judged_and_shown(tmp_path: Path, refinable: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The lines of the guide, with the probability behind them where that is asked for."""
    go(tmp_path, refinable, "runner.max_steps=12", "env.eval.max_episode_steps=5", "reward.use_reward_prob=true",
       "env.eval.data_collection.enabled=true", "reward.reward_threshold=0.2", "reward.late_seconds=20")  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[TeleopWorker] Starting teleoperation loop."
    assert lines[1] == ("[TeleopWorker] EmbodiedRewardWorker ready: type=EmbodiedRewardWorker | reward_threshold=0.200")
    form = r"Step (\d+) \| rm_reward: (0|1) \| success: (True|False) \| prob: (\d\.\d{3})"
    found = [match.groups() for line in lines if (match := re.fullmatch(form, line))]
    assert [int(each[0]) for each in found] == list(range(12))
    episodes = list(EpisodeStore(tmp_path / "collected_data"))
    assert [len(each) for each in episodes] == [5, 5, 2]  # the last one is cut off, and kept
    manager = RewardManager(Artifact.open(refinable), RewardOptions(reward_mode="per_step", reward_threshold=0.2))
    shown = [float(each[3]) for each in found]
    for episode, part in zip(episodes, (shown[:5], shown[5:10], shown[10:]), strict=True):
        frames = {name: episode.observations[name][1:] for name in ("main_images", "extra_view_images")}
        verdict = manager.judge(frames, cameras=("front", "side"))
        np.testing.assert_allclose(part, verdict.probability, atol=6e-4)  # the very frames that were recorded
    assert lines.count("the episode is over: the arm went back to its start") == 2
    assert lines[-1] == f"recorded in {tmp_path / 'collected_data'}"
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["steps"] == 12 and result["recorded_episodes"] == 3 and result["late"] == 0


def test_without_columns_the_lines_are_those_of_the_guide(
    tmp_path: Path, refinable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    go(tmp_path, refinable, "runner.max_steps=4", "reward.reward_threshold=0", "reward.gate_k=2", "reward.gate_n=2",
       "reward.late_seconds=20")  # fmt: skip
    assert capsys.readouterr().out.splitlines()[:6] == [
        "[TeleopWorker] Starting teleoperation loop.",
        "[TeleopWorker] EmbodiedRewardWorker ready: type=EmbodiedRewardWorker | reward_threshold=0.000",
        "Step 0 | rm_reward: 0 | success: False",
        "Step 1 | rm_reward: 1 | success: True",
        "Step 2 | rm_reward: 1 | success: True",
        "Step 3 | rm_reward: 1 | success: True",
    ]


def test_a_hold_is_said_on_a_line_of_its_own(
    tmp_path: Path, refinable: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step, count = FrankaVectorEnv.step, iter(range(100))
    monkeypatch.setattr(
        FrankaVectorEnv, "step", lambda self, actions: self.hold("tired") if next(count) == 1 else step(self, actions)
    )
    lines = ["reward.reward_threshold=0", "reward.gate_k=1", "reward.gate_n=1", "reward.late_seconds=20",
             "reward.standalone_realworld=false", "reward.use_reward_prob=false", "runner.max_steps=3"]  # fmt: skip
    go(tmp_path, refinable, *lines, *TWIN, preset="realworld_teleop", base=[])
    assert capsys.readouterr().out.splitlines()[2:6] == [
        "Step 0 | rm_reward: 1 | success: True",
        "Step 1 | rm_reward: 0 | success: False",
        "the arm held: tired",
        "Step 2 | rm_reward: 1 | success: True",
    ]


def test_the_verdict_ends_episodes_where_it_may(
    tmp_path: Path, refinable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    always = ["reward.reward_threshold=0.0", "reward.gate_k=2", "reward.gate_n=3", "reward.late_seconds=20",
              "reward.standalone_realworld=true", "runner.max_steps=7"]  # fmt: skip
    go(tmp_path, refinable, *always, *TWIN, "env.eval.data_collection.enabled=true", preset="realworld_teleop", base=[])
    assert [len(each) for each in EpisodeStore(tmp_path / "collected_data")] == [2, 2, 2, 1]
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Step")]
    assert [("rm_reward: 1 | success: True" in line) for line in lines] == [False, True] * 3 + [False]


def guides_file(folder: Path) -> str:
    """The whole file of the guide to teleoperation, as it stands there: two nodes, one camera, no gripper."""
    text = (ROOT / "tests/documented/guides/blocks/004_teleop.yaml").read_text()
    (folder / "realworld_teleop.yaml").write_text(text)
    return str(folder / "realworld_teleop.yaml")


def test_the_guides_own_file_fits_its_environment(tmp_path: Path) -> None:
    """One serial number, one camera; at an arm, with nothing added but what the guide leaves open."""
    given = ["robot.robot_ip=172.16.0.2", "env.eval.target_ee_pose=[0.5,0,0.1,-3.14,0,0]"]
    env = load(guides_file(tmp_path), ["runner.recipe=teleop", *given]).config.env.eval
    assert isinstance(env, FrankaEnvConfig)
    assert (env.cameras, env.camera_serials, env.no_gripper) == (("wrist",), ("0123456789",), True)
    Setup.of(env)  # refuses cameras without a serial number
    both = load(
        guides_file(tmp_path), ["runner.recipe=teleop", *given, 'env.eval.camera_serials=["1","2"]']
    ).config.env.eval
    none = load(guides_file(tmp_path), ["runner.recipe=teleop", *given, "env.eval.camera_serials=[]"]).config.env.eval
    assert both is not None and none is not None and both.cameras == none.cameras == ("wrist", "front")
    for driver in ("franky", "twin"):
        two = replace(env, cameras=("wrist", "front"), robot=replace(env.robot, driver=driver))
        with pytest.raises(ConfigError, match=r"2 cameras \(wrist, front\) but 1 camera_serials"):
            Setup.of(two)


def test_the_guides_own_file_runs_on_the_twin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = ModelSpec(arch="resnet10", width=4, image_size=128, resize="bilinear", cameras=("wrist",), hidden_dim=8)
    torch.manual_seed(0)
    Artifact(build(spec).eval(), Calibration()).save(tmp_path / "model")
    here = ["robot.driver=twin", "robot.realtime=false", "cluster.num_nodes=1", "cluster.component_placement=null",
            "cluster.node_groups=[]", f"reward.model.model_path={tmp_path / 'model'}",
            "runner.policy=random"]  # fmt: skip
    lines = ["runner.recipe=teleop", *here, "runner.max_steps=3", "reward.late_seconds=20",
             f"runner.logger.log_path={tmp_path / 'run'}"]  # fmt: skip
    run(load(guides_file(tmp_path), lines))
    out = capsys.readouterr().out
    assert "reward_threshold=0.200" in out
    assert len(re.findall(r"^Step \d+ \| rm_reward: [01] \| success: (?:True|False) \| prob: ", out, re.M)) == 3


def worker(folder: Path, **options: Any) -> tuple[TeleopWorker, EpisodeStore]:
    env = make_vec(PandaEnvConfig(task="Reach", num_envs=1, num_threads=1))
    store = EpisodeStore(folder)
    recording = LiveRecording(env, store, Meta())
    return TeleopWorker(env, lambda: np.zeros((1, 4), np.float32), gate=Gate(1, 2, 2),
                        options=RewardOptions(reward_mode="per_step"), cameras=("front",), recording=recording,
                        **options), store  # fmt: skip


def test_a_late_verdict_is_no_success(tmp_path: Path) -> None:
    arm, store = worker(tmp_path, verdict_ends=True)
    good = Look(True, 0.9, 0.01)
    said = []
    for look in (good, None, good, good, good):
        assert set(arm.step()) >= {"main_images"}
        said.append(arm.take(look))
    # One late frame breaks the gate; two in a row are needed. The fourth ends the episode, and a new gate begins.
    assert [each.success for each in said] == [False, False, False, True, False]
    assert [each.ended for each in said] == [False, False, False, True, False]
    assert (
        said[1].line(probability=True, latency="late") == "Step 1 | rm_reward: 0 | success: False | prob: none | late"
    )
    assert said[3].line() == "Step 3 | rm_reward: 1 | success: True"
    assert arm.finish() == 2 and [len(each) for each in store] == [4, 1]


def test_successes_in_a_row_end_an_episode(tmp_path: Path) -> None:
    arm, _ = worker(tmp_path, verdict_ends=True, hold=3)
    ends = []
    for look in (True, True, True, False, True, True, True, True, True):
        arm.step()
        ends.append(arm.take(Look(look, 0.5, 0.01)).ended)
    # The gate fires from the second good frame on, and three times in a row are needed.
    assert ends == [False] * 7 + [True, False]
    arm.close()


@pytest.mark.slow
def test_the_arm_holds_while_a_verdict_is_missing(
    tmp_path: Path, refinable: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a twin in real time: the third verdict takes three seconds."""
    looks = iter([0, 0, 0, 3, 0, 0])
    real, held = LiveJudge.look, []

    def slow(self: LiveJudge, pictures: Any, cameras: Any) -> Look:
        time.sleep(next(looks))
        return real(self, pictures, cameras)

    hold = FrankaVectorEnv.hold
    monkeypatch.setattr(workers.LiveJudge, "look", slow)
    monkeypatch.setattr(FrankaVectorEnv, "hold", lambda self, why: (held.append(why), hold(self, why))[1])
    always = ["reward.reward_threshold=0.0", "reward.gate_k=1", "reward.gate_n=1", "reward.late_seconds=1.2",
              "reward.standalone_realworld=false", "runner.max_steps=5", "runner.show_latency=true"]  # fmt: skip
    go(tmp_path, refinable, *always, *TWIN, "robot.realtime=true", preset="realworld_teleop", base=[])
    out = capsys.readouterr().out
    assert "no verdict within 1.2 s: the arm holds, and this is no success" in out
    assert 3 <= len(held) <= 20 and set(held) == {"a verdict is missing"}
    lines = [line for line in out.splitlines() if line.startswith("Step")]
    assert ["success: True" in line for line in lines] == [True, True, False, True, True]
    assert lines[2].endswith("success: False | prob: none | late")
    assert all(re.search(r"\| prob: \d\.\d{3} \| \d+ ms$", line) for line in (*lines[:2], *lines[3:]))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["reward.reward_mode=terminal"], "reward.reward_mode is terminal, but each frame is judged here"),
        (["reward.use_reward_model=false"], "reward.use_reward_model is false"),
        (["reward.model.model_path=null"], "reward.model.model_path is not given"),
        (["env.eval.cameras=[front]"], "the reward model looks at camera 'side', but env.eval.cameras are front"),
        (["env.eval.data_collection.enabled=true", "env.eval.data_collection.export_format=pickle"], "as native"),
        (["runner.live_view=here"], "runner.live_view is 'here': give a .rrd file, spawn, or"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, refinable: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(RefereeError, match=message):
        go(tmp_path, refinable, "runner.max_steps=1", *overrides)


def test_a_viewer_that_is_not_there_ends_nothing(
    tmp_path: Path, refinable: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as nobody:  # a port on which nobody listens
        nobody.bind(("127.0.0.1", 0))
        where = f"rerun+http://127.0.0.1:{nobody.getsockname()[1]}/proxy"
        go(tmp_path, refinable, "runner.max_steps=3", f"runner.live_view={where}", "reward.late_seconds=20")
    assert "3 steps" in capsys.readouterr().out and "going on without it" in caplog.text


def test_a_live_view_can_be_kept(tmp_path: Path, refinable: Path) -> None:
    pytest.importorskip("rerun")
    go(tmp_path, refinable, "runner.max_steps=3", f"runner.live_view={tmp_path / 'view.rrd'}", "reward.late_seconds=20")
    assert (tmp_path / "view.rrd").stat().st_size > 3000
