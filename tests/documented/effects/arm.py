"""At a real arm: keys of guides 001 and 004 for the robot, its cameras, its person and the nodes, on the twin."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.documented.cases import Case, Tools, effect, no_effect
from tests.documented.effects.reward import fixed

from referee.config import FrankaEnvConfig
from referee.datasets.payload import RewardBinaryDataset
from referee.envs import make_vec
from referee.envs.franka.setup import Setup, open_camera
from referee.episodes import EpisodeStore
from referee.episodes.formats.detect import read_any
from referee.errors import ConfigError, RefereeError
from referee.learn.environments import with_robot
from referee.recipes import run
from referee.recipes.collect_data import collect_data
from referee.recipes.collect_labels import check, collect_labels
from referee.recipes.train_policy import train_policy
from referee.robots.cameras import CameraError
from referee.robots.clock import SimulatedClock
from referee.robots.keys import ScriptedKeys
from referee.robots.spacemouse import Motion, ScriptedInput
from referee.runs.folder import name_run, unlock
from referee.runtime import Cluster
from referee.runtime.placement import Hardware, plan

ARM = "001_arm 004_hold 004_dataset 004_teleop"
TWIN = ["robot.driver=twin", "robot.realtime=false"]
ALONE = ["cluster.num_nodes=1", "cluster.component_placement=null", "cluster.node_groups=[]"]
IP = "172.16.0.2"


def arm(case: Case, *overrides: str) -> FrankaEnvConfig:
    env = case.load(*overrides).config.env.eval
    assert isinstance(env, FrankaEnvConfig)
    return env


# --- the robot ---


@effect("env.eval.override_cfg.target_ee_pose")
def the_pose_where_the_task_is_done(case: Case, tools: Tools) -> None:
    real = [f"robot.robot_ip={IP}", 'env.eval.camera_serials=["1"]', "env.eval.cameras=[wrist]"]
    if case.value == "TARGET_EE_POSE":
        with pytest.raises(ConfigError, match=r"target_ee_pose is not set \(TARGET_EE_POSE\)"):
            Setup.of(arm(case, *real))
        return
    setup = Setup.of(arm(case, *real))
    assert setup.target is not None
    np.testing.assert_allclose(setup.target.position, case.value[:3])
    np.testing.assert_allclose(setup.start.position - setup.target.position, [0, 0, 0.1], atol=1e-9)


@effect("env.eval.override_cfg.success_hold_steps", "runner.num_data_episodes")
def episodes_end_when_the_pose_is_held(case: Case, tools: Tools) -> None:
    """Two episodes on the twin: the last twenty frames of each are successes, and the one before them is none."""
    config = case.config
    assert config.env.eval is not None and config.env.eval.success_hold_steps == 20
    assert config.runner.num_data_episodes == 20

    def collected(folder: Path) -> Path:
        lines = [*TWIN, "runner.policy=expert", "runner.num_data_episodes=2", f"runner.logger.log_path={folder}"]
        collect_data(case.load(*lines), keys=ScriptedKeys([]))
        return folder

    folder: Path = tools.once(f"{case.block} data.pkl", collected)
    episodes = list(read_any(folder / "data.pkl"))
    assert len(episodes) == 2
    for episode in episodes:
        assert episode.success is not None and episode.terminated[-1]
        assert episode.success[-20:].all() and not episode.success[-21]


@effect("env.eval.no_gripper")
def actions_move_the_gripper_or_not(case: Case, tools: Tools) -> None:
    env = make_vec(arm(case, *TWIN, "env.eval.use_spacemouse=false"))
    assert env.single_action_space.shape == (3 if case.value else 4,)
    env.close()


@effect("env.eval.max_episode_steps")
def an_episode_is_cut_off(case: Case, tools: Tools) -> None:
    assert make_vec(arm(case, *TWIN, "env.eval.use_spacemouse=false")).max_episode_steps == case.value == 10_000
    env = make_vec(arm(case, *TWIN, "env.eval.use_spacemouse=false", f"{case.key}=3", "env.eval.obs_mode=state"))
    env.reset(seed=0)
    still = np.zeros((1, *env.single_action_space.shape), np.float32)  # type: ignore[misc]
    assert [bool(env.step(still)[3][0]) for _ in range(3)] == [False, False, True]
    env.close()


@effect("env.eval.use_spacemouse")
def a_spacemouse_overrides(case: Case, tools: Tools) -> None:
    assert case.value is True
    push = ScriptedInput([Motion(translation=np.array([0.0, 0.0, 1.0]))])
    env = make_vec(arm(case, *TWIN, "env.eval.obs_mode=state"), push)
    env.reset(seed=0)
    info = env.step(np.zeros((1, *env.single_action_space.shape), np.float32))[4]  # type: ignore[misc]
    env.close()
    assert info["_intervene_action"].all() and info["intervene_action"][0, 2] > 0
    alone = make_vec(arm(case, *TWIN, "env.eval.obs_mode=state", f"{case.key}=false"))
    alone.reset(seed=0)
    assert "intervene_action" not in alone.step(np.zeros((1, *alone.single_action_space.shape), np.float32))[4]  # type: ignore[misc]
    alone.close()


@effect("env.eval.override_cfg.camera_serials")
def the_camera_with_that_serial_number_is_opened(case: Case, tools: Tools) -> None:
    env = arm(case)
    assert env.camera_serials == tuple(case.value) and env.cameras == ("wrist",)
    with pytest.raises(CameraError, match=rf"camera wrist \(serial {case.value[0]}\) is not there"):
        open_camera(env, "wrist", None, SimulatedClock())


# --- labels by keys ---


@effect("env.eval.keyboard_reward_wrapper")
def keys_label_frames(case: Case, tools: Tools) -> None:
    check(case.config)
    with pytest.raises(ConfigError, match="keyboard_reward_wrapper is null, so keys would say nothing"):
        check(case.load(f"{case.key}=null").config)


@effect("runner.num_success_frames", "runner.num_fail_frames", "runner.val_split", "runner.fail_success_ratio",
        "runner.random_seed", blocks="004_dataset")  # fmt: skip
def frames_that_are_labelled(case: Case, tools: Tools) -> None:
    """The guide's own numbers: 50 successes and 150 failures, labelled in stretches of ten and thirty frames."""

    def labelled(folder: Path) -> Path:
        stretch = [*["a"] * 30, *[""] * 8, *["c"] * 10, *[""] * 8]
        keys = ScriptedKeys([[], *(list(key) for key in stretch * 9)])
        lines = [*TWIN, *ALONE, "runner.policy=random", "runner.max_steps=500", f"runner.logger.log_path={folder}"]
        collect_labels(case.load(*lines), keys=keys)
        return folder

    folder: Path = tools.once("004_dataset run", labelled)
    sides = {name: RewardBinaryDataset(folder / f"{name}.pt") for name in ("train", "val")}
    about = sides["train"].metadata
    assert (about["num_success_frames"], about["num_fail_frames"]) == (50, 150), (
        "it stops when there are enough of both"
    )
    [episode] = EpisodeStore(folder / "recording")
    assert len(episode) == 4 * 56 + 48, "with the fiftieth success, and no later"
    wins = {name: int(side.labels.sum()) for name, side in sides.items()}
    fails = {name: len(side) - wins[name] for name, side in sides.items()}
    assert fails["train"] == 2.0 * wins["train"], "two failures per success in training"
    assert wins["val"] / 50 == pytest.approx(0.2, abs=0.06) and fails["val"] > 2.0 * wins["val"]
    values = {"num_success_frames": 50, "num_fail_frames": 150, "val_split": 0.2, "fail_success_ratio": 2.0,
              "random_seed": 42}  # fmt: skip
    name = case.key.partition(".")[2]
    assert values[name] == case.value == about[name]


@effect("runner.logger.log_path", "runner.logger.experiment_name", blocks="004_dataset")
def name_of_the_run(case: Case, tools: Tools) -> None:
    assert tools.here.is_dir()  # the run's folder is made there
    place, named = name_run(case.load()), name_run(case.load("runner.logger.log_path=elsewhere"))
    unlock(place)
    unlock(named)
    assert str(place.parent) == "logs" and re.fullmatch(r"\d{8}-\d{6}-collect-dataset", place.name)
    assert case.value in (None, "collect-dataset") and str(named) == "elsewhere"


no_effect("it acts only with runner.recipe=train_policy", "runner.logger.project_name", blocks="004_dataset")


@effect("runner.logger.logger_backends", blocks="004_dataset")
def nothing_is_measured_while_frames_are_labelled(case: Case, tools: Tools) -> None:
    """There are no metrics, so another value than the default is said to have no effect."""
    assert case.value == ["tensorboard"]
    said = [line for line in case.load(f"{case.key}=[wandb]").notices if line.startswith(case.key)]
    assert len(said) == 1 and "has no effect: it acts only with" in said[0]


@effect("runner.task_type")
def robots_are_rewarded_and_not_texts(case: Case, tools: Tools) -> None:
    assert case.config.runner.task_type == case.value == "embodied"
    assert case.load(f"{case.key}=reasoning").config.runner.task_type == "text"


# --- teleoperation ---


def teleoperated(case: Case, tools: Tools, probability: float, *overrides: str) -> list[str]:
    """The lines of six steps on the twin, where the model gives this probability to every frame."""
    torch.manual_seed(0)
    folder = tools.here / f"run_{len(list(tools.here.glob('run_*')))}"
    fixed(probability, cameras=("wrist",), resize="bilinear", image_size=128).save(tools.here / "model")
    tools.capsys.readouterr()
    run(case.load(*TWIN, *ALONE, f"reward.model.model_path={tools.here / 'model'}", "runner.policy=random",
                  "runner.max_steps=6", "reward.late_seconds=20", f"runner.logger.log_path={folder}",
                  *overrides))  # fmt: skip
    return tools.capsys.readouterr().out.splitlines()


def steps(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("Step ")]


@effect("reward.reward_threshold", blocks="004_teleop")
def a_success_from_that_probability_on(case: Case, tools: Tools) -> None:
    for probability, said in ((case.value + 0.05, "rm_reward: 1 | success: True"),
                              (case.value - 0.05, "rm_reward: 0 | success: False")):  # fmt: skip
        lines = teleoperated(case, tools, probability)
        assert [line.partition(" | ")[2].startswith(said) for line in steps(lines)] == [True] * 6
        assert any(f"reward_threshold={case.value:.3f}" in line for line in lines)


@effect("reward.use_reward_prob")
def probabilities_are_shown(case: Case, tools: Tools) -> None:
    assert case.value is True
    for shown in (True, False):
        lines = steps(teleoperated(case, tools, 0.375, f"{case.key}={shown}"))
        assert [("0.375" in line) for line in lines] == [shown] * 6


@effect("reward.standalone_realworld")
def the_verdict_ends_episodes(case: Case, tools: Tools) -> None:
    assert case.value is True
    for ends, ended in ((True, 6), (False, 0)):
        lines = teleoperated(case, tools, 0.9, f"{case.key}={ends}")
        assert sum("the arm went back to its start" in line for line in lines) == ended


@effect("reward.reward_mode", "reward.use_reward_model", blocks="004_teleop")
def each_frame_is_scored(case: Case, tools: Tools) -> None:
    assert len(steps(teleoperated(case, tools, 0.9))) == 6
    other, said = {"per_step": ("terminal", "each frame is judged here"), True: (False, "is false")}[case.value]
    with pytest.raises(ConfigError, match=said):
        teleoperated(case, tools, 0.9, f"{case.key}={other}")


# --- the nodes ---


@effect("cluster.node_groups.*.hardware.*", blocks=ARM)
def the_robot_and_the_node_that_it_is_wired_to(case: Case, tools: Tools) -> None:
    number = case.key.split(".")[2]
    loaded = case.load(f"cluster.node_groups.{number}.hardware.configs.0.robot_ip={IP}", "robot.driver=franky")
    env = with_robot(loaded.config).env.eval
    assert isinstance(env, FrankaEnvConfig) and env.robot.robot_ip == IP
    if case.value == "ROBOT_IP":
        with pytest.raises(ConfigError, match=r"robot\.robot_ip is not set"):
            Setup.of(arm(case, 'env.eval.camera_serials=["1"]', "env.eval.cameras=[wrist]"))
    cluster = loaded.config.cluster
    if cluster.component_placement is None:  # guide 001 names no placement
        return
    (rank,) = plan(cluster, [0] * cluster.num_nodes)["env"]
    assert rank.hardware == Hardware("Franka", IP) and rank.node == cluster.num_nodes - 1
    if case.key.endswith(".type"):
        assert case.value == rank.hardware.type
    if case.key.endswith("node_rank"):
        assert case.value == rank.node


@effect("cluster.node_groups.*.label", "cluster.node_groups.*.node_ranks", "cluster.component_placement.*.node_group",
        "cluster.component_placement.*.placement", blocks="004_dataset 004_teleop")  # fmt: skip
def components_go_to_their_nodes(case: Case, tools: Tools) -> None:
    """The arm's worker beside the arm; in guide 004's teleoperation the model on the other node, with the GPU."""
    cluster = case.config.cluster
    ranks = plan(cluster, [1, 0][: cluster.num_nodes])
    where = {name: (rank.node, rank.slot) for name in ranks.ranks for rank in ranks[name]}
    assert where == ({"env": (1, 0), "reward": (0, 0)} if case.block == "004_teleop" else {"env": (0, 0)})
    if case.block == "004_teleop":
        assert ranks["reward"][0].accelerator == 0 and ranks["env"][0].accelerator is None
    wrong = {"label": "nobody", "node_ranks": "7", "node_group": "nobody", "placement": "7"}[
        case.key.rpartition(".")[2]
    ]
    with pytest.raises(ConfigError, match=r"cluster\.(component_placement|node_groups)"):
        plan(case.load(f"{case.key}={wrong}").config.cluster, [1, 0][: cluster.num_nodes])


@effect("cluster.num_nodes")
def machines_that_take_part(case: Case, tools: Tools) -> None:
    cluster = case.config.cluster
    assert cluster.num_nodes == case.value
    if case.value == 1:
        Cluster(cluster).close()
        return
    with pytest.raises(ConfigError, match=rf"cluster\.num_nodes is {case.value}, but with cluster\.backend=local"):
        Cluster(cluster)


@effect("cluster.component_placement.*", blocks="002_pay 003_train")
def slots_of_each_component(case: Case, tools: Tools) -> None:
    """On a machine with two GPUs, a slot is a GPU."""
    if case.key.count(".") > 2:
        return
    ranks = plan(case.config.cluster, [2])[case.key.rpartition(".")[2]]
    assert [rank.accelerator for rank in ranks] == {"0-0": [0], "0-1": [0, 1], "all": [0, 1]}[case.value]


@effect("runner.resume_dir", blocks="002_pay")
def nothing_to_go_on_from(case: Case, tools: Tools) -> None:
    """Null starts from the beginning; a folder without a run is refused by that name."""
    assert case.config.runner.resume_dir is case.value is None
    here = ["cluster.component_placement=null", "reward.use_reward_model=false", f"{case.key}={tools.here / 'nothing'}"]
    with pytest.raises(RefereeError, match=str(tools.here / "nothing")):
        train_policy(case.load(*here, preset="panda_ppo_mlp"))
