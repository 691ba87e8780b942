"""The keys of an arm: presets and groups, placeholders, older spellings, and the one address of the robot."""

from pathlib import Path

import pytest

from referee.config import FrankaEnvConfig, load, to_yaml
from referee.config.endings import ending
from referee.envs.franka.setup import Setup
from referee.errors import ConfigError, RefereeError
from referee.learn.checks import check
from referee.learn.environments import with_robot

RLPD = "realworld_peginsertion_rlpd_cnn_async"


def arm(*overrides: str, preset: str = RLPD, which: str = "train") -> FrankaEnvConfig:
    env = getattr(with_robot(load(preset, overrides).config).env, which)
    assert isinstance(env, FrankaEnvConfig)
    return env


def test_one_word_makes_the_preset_run_without_an_arm() -> None:
    loaded = load(RLPD, ["robot.driver=twin", "robot.realtime=false"])
    check(loaded.config)
    assert loaded.notices == []
    for env in (loaded.config.env.train, loaded.config.env.eval):
        assert isinstance(env, FrankaEnvConfig)
        assert env.robot.driver == "twin" and not env.robot.realtime and env.no_gripper


def test_placeholders_are_clear_errors_until_set() -> None:
    address = "cluster.node_groups.0.hardware.configs.0.robot_ip=172.16.0.2"
    with pytest.raises(ConfigError, match=r"robot\.robot_ip is not set: .* robot\.driver=twin"):
        Setup.of(arm())
    serials = 'env.train.camera_serials=["1","2"]'
    with pytest.raises(ConfigError, match=r"2 cameras \(wrist, front\) but 0 camera_serials"):
        Setup.of(arm(address))
    with pytest.raises(ConfigError, match="target_ee_pose is not set"):
        Setup.of(arm(address, serials))
    pose = "env.train.target_ee_pose=[0.5,0,0.1,-3.14,0,0]"
    env = arm(address, serials, pose)
    assert env.robot.robot_ip == "172.16.0.2"
    assert Setup.of(env).start.position.tolist() == [0.5, 0.0, 0.2]
    config = with_robot(load(RLPD, [address, serials, pose]).config)
    with pytest.raises(ConfigError, match=r"no scripted expert: record some .* algorithm\.demos\.path"):
        check(config)
    asks = ["reward.use_reward_model=true", "reward.refine.enabled=true"]
    config = with_robot(load(RLPD, [address, serials, pose, *asks]).config)
    with pytest.raises(ConfigError, match=r"reward\.refine\.labeller=truth asks a simulation, and an arm is none"):
        check(config)
    config = with_robot(load(RLPD, [address, serials, pose, "runner.eval_episodes=5"]).config)
    with pytest.raises(ConfigError, match="there is one arm, and it learns: set it to 0"):
        check(config)


def test_the_length_of_a_registered_environment_is_left_to_it() -> None:
    config = load("gym_rlpd_mlp", ["env.train.id=FetchReach-v4", "algorithm.demos.path=x"]).config
    says = "episodes end when the truth says success for 5 steps in a row, or as registered"
    assert ending(config) == says


@pytest.mark.parametrize(
    ("more", "truth", "model", "says"),
    [
        ([], True, None, "when the truth says success for 5 steps in a row, or after 100 steps"),
        (["reward.use_reward_model=true"], False, "model", "when the reward model says success for 5 steps in a row"),
        (["reward.use_reward_model=true", "reward.terminate_on=truth"], True, "truth", "when the truth says success"),
        (
            ["reward.use_reward_model=true", "reward.terminate_on=never", "env.train.success_hold_steps=1"],
            False,
            "never",
            "episodes end after 100 steps",
        ),
    ],
)
def test_who_pays_ends_episodes_unless_a_key_says_otherwise(
    more: list[str], truth: bool, model: str | None, says: str
) -> None:
    config = load(RLPD, ["robot.driver=twin", *more]).config
    check(config)
    assert (config.env.train.terminate_on_success, config.reward.terminate_on) == (truth, model)
    assert says in ending(config)


def test_advice_on_endings_does_not_contradict_itself() -> None:
    paid = ["robot.driver=twin", "reward.use_reward_model=true"]
    with pytest.raises(
        ConfigError, match=r"set env\.train\.terminate_on_success=false, or say reward\.terminate_on=truth"
    ):
        check(load(RLPD, [*paid, "env.train.terminate_on_success=true"]).config)
    with pytest.raises(ConfigError, match=r"set it to 1, or reward\.terminate_on=model$"):
        check(load(RLPD, [*paid, "reward.terminate_on=never"]).config)


def test_a_saved_configuration_says_the_same_again(tmp_path: Path) -> None:
    for more in ([], ["reward.use_reward_model=true"]):
        first = load(RLPD, ["robot.driver=twin", *more])
        (tmp_path / "saved.yaml").write_text(to_yaml(first))
        again = load(str(tmp_path / "saved.yaml"))
        assert again.config == first.config and again.notices == first.notices


def test_the_arms_own_address_beats_the_clusters() -> None:
    address = "cluster.node_groups.0.hardware.configs.0.robot_ip=172.16.0.2"
    assert arm(address, "robot.robot_ip=10.0.0.9").robot.robot_ip == "10.0.0.9"


def test_the_documents_keys_are_translated(tmp_path) -> None:
    (tmp_path / "mine.yaml").write_text(
        """
defaults:
  - env/realworld_bin_relocation@env.eval
runner:
  recipe: evaluate
robot:
  driver: twin
env:
  eval:
    no_gripper: false
    max_episode_steps: 10000
    override_cfg:
      target_ee_pose: [0.5, 0.0, 0.1, -3.14, 0.0, 0.0]
      success_hold_steps: 20
      camera_serials: ["0123456789", "42"]
"""
    )
    env = arm(preset=str(tmp_path / "mine.yaml"), which="eval")
    assert env.target_ee_pose == (0.5, 0.0, 0.1, -3.14, 0.0, 0.0)
    assert env.success_hold_steps == 20 and env.camera_serials == ("0123456789", "42")
    assert env.task == "BinRelocation" and env.robot.scene == "PickCube"


def test_the_documents_placeholder_of_a_pose_means_none() -> None:
    env = arm("env.train.override_cfg.target_ee_pose=TARGET_EE_POSE", "robot.driver=twin")
    assert env.target_ee_pose is None


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is one arm"):
        Setup.of(arm("robot.robot_ip=1.2.3.4", "env.train.num_envs=2"))
    with pytest.raises(ConfigError, match=r"2 twins cannot share one clock: set robot\.realtime=false"):
        Setup.of(arm("robot.driver=twin", "env.train.num_envs=2"))
    with pytest.raises(RefereeError, match="millimetres"):
        Setup.of(arm("robot.driver=twin", "env.train.target_ee_pose=[500,0,100,-3.14,0,0]"))


def test_a_robot_without_an_arms_environment_has_no_effect() -> None:
    (notice,) = load("panda_expert", ["robot.driver=twin"]).notices
    assert "robot.driver" in notice and "no effect" in notice
