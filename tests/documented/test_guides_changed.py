"""What the guides say to the letter, where an older or shorter reading did something else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.documented.cases import BLOCKS, Case, Tools, tools
from tests.documented.effects.arm import steps, teleoperated
from tests.documented.effects.model import opened
from tests.documented.effects.reward import SURE, fixed, rewards
from tests.documented.effects.training import options, trained, trajectories
from tests.documented.smaller import PPO

from referee.compat import RewardDataCollector
from referee.config import load
from referee.config.schema import RewardModelConfig
from referee.errors import ConfigError
from referee.recipes import run
from referee.rewards.classifier import open_model
from referee.runtime.placement import plan
from referee.training.data import open_data
from referee.training.recipe import make_model

__all__ = ["tools"]
RESNET18 = 11_176_512
"""Parameters of torchvision's ResNet18 without its last layer."""


def case_of(block: str, key: str = "", value: object = None) -> Case:
    assert block in BLOCKS
    return Case(block, key, value)


@pytest.mark.parametrize("block", ["000_pay", "002_pay", "003_pay"])
def test_guides_without_a_reward_mode_score_every_state(block: str, tools: Tools) -> None:
    """000 and 003 score each observation, 002 all timesteps; one line recommends the terminal mode."""
    loaded = case_of(block).load()
    assert loaded.config.reward.reward_mode == "per_step"
    assert any("terminal" in line for line in loaded.notices)
    np.testing.assert_array_equal(rewards(case_of(block), tools, SURE), 1.0)
    ends = rewards(case_of(block), tools, SURE, "reward.reward_mode=terminal")
    assert (ends[:-1] == 0).all() and (ends[-1] == 1).all()


@pytest.mark.parametrize("block", ["000_pay", "003_pay"])
def test_continuous_is_the_probability_where_guides_000_and_003_ask_for_it(block: str, tools: Tools) -> None:
    for probability in (0.25, 0.75):
        found = rewards(case_of(block), tools, probability, "reward.reward_model.reward_type=continuous")
        np.testing.assert_allclose(found[-1], probability, rtol=1e-4)


def test_continuous_is_zero_below_the_threshold_of_guide_004(tools: Tools) -> None:
    for probability, expected in ((0.25, 0.0), (0.75, 0.75)):
        found = rewards(case_of("004_reward"), tools, probability, "reward.reward_type=continuous")
        np.testing.assert_allclose(found[-1], expected, rtol=1e-4)


def test_negative_rewards_carry_the_guides_warning(tools: Tools) -> None:
    """Guide 001: policies collapse under rewards that are all negative; use 0."""
    said = "\n".join(case_of("001_troubleshooting_negative").load().notices)
    assert re.search(r"(?i)collapse|fail_reward ?[=:] ?0", said), said


def test_keys_beside_an_artifact_are_compared_with_it(tools: Tools) -> None:
    """What differs is said, and the artifact wins; the precision is chosen at run time."""
    fixed(0.7, image_size=128).save(tools.here / "best_model")
    config = case_of("001_reward").load(f"reward.model.checkpoint_path={tools.here / 'best_model'}").config.reward.model
    assert isinstance(config, RewardModelConfig)
    spec = open_model(config).spec
    assert (spec.hidden_dim, spec.arch, spec.precision) == (8, "resnet10", "bf16")
    assert re.search(r"hidden_dim.*8.*256|hidden_dim.*256.*8", tools.caplog.text)


def test_pretrained_true_says_what_to_give(tools: Tools) -> None:
    with pytest.raises(ConfigError, match=r"actor\.model\.pretrained.*(file|path|\.pt)"):
        case_of("004_train_model").load("actor.model.pretrained=True")


def test_resnet18_is_torchvisions(tools: Tools) -> None:
    case = case_of("004_train_model")
    model = make_model(options(case, tools), open_data(options(case, tools).data, tools.here / "data"), lambda _: None)
    assert sum(each.numel() for each in model.encoder.parameters()) == RESNET18  # type: ignore[union-attr]


def test_resnet18_online_is_torchvisions(tools: Tools) -> None:
    torch.manual_seed(0)
    model = opened(case_of("001_reward"), tools.here, width=64).model
    assert sum(each.numel() for each in model.encoder.parameters()) == RESNET18  # type: ignore[union-attr]


def test_the_resnet10_of_guide_003_has_64_channels(tools: Tools) -> None:
    case = case_of("003_train")
    model = make_model(options(case, tools), open_data(options(case, tools).data, tools.here / "data"), lambda _: None)
    assert model.encoder.conv1.out_channels == 64  # type: ignore[union-attr]


@pytest.mark.slow
def test_guide_003_saves_steps_where_it_says(tools: Tools) -> None:
    place, folders = tools.here / "checkpoints", trajectories(tools)
    data = [f"reward.data.{kind}_dir={folders / kind}" for kind in ("positive", "negative")]
    trained(case_of("003_train"), tools, *data, f"reward.save_dir={place}", "reward.save_interval=1",
            "reward.global_batch_size=16", "actor.encoder_warmup_steps=1",
            f"runner.logger.log_path={tools.here / 'run'}")  # fmt: skip
    values = torch.load(place / "step_1/checkpoint.pt", weights_only=True)
    assert {"epoch", "model_state_dict", "optimizer_state_dict", "train_loss", "train_acc"} <= set(values)


def test_a_trajectory_is_positive_if_either_sign_says_so(tools: Tools) -> None:
    """Guides 000 and 003: `success_once`, or any frame of success."""
    places = tools.here / "positive", tools.here / "negative"
    collector = RewardDataCollector(*places, image_keys=["base_camera"])
    image = np.zeros((2, 8, 8, 3), np.uint8)
    output = {"obs": {"base_camera": image}, "success_frame": np.zeros(2), "dones": np.zeros(2, bool)}
    collector.add_env_output(output, {"success_once": np.array([False, False])}, is_last_step=False)
    output |= {"dones": np.ones(2, bool)}
    collector.add_env_output(output, {"success_once": np.array([True, False])}, is_last_step=True)
    assert [len(list(place.glob("*.npy"))) for place in places] == [1, 1]


def test_an_empty_placement_clears_and_commas_parse(tools: Tools) -> None:
    case = case_of("002_pay")
    assert not plan(case.load("cluster.component_placement={}").config.cluster, [2]).ranks
    found = plan(load("panda_ppo_mlp", ["cluster.component_placement.reward=0,2"]).config.cluster, [4])
    assert [rank.slot for rank in found["reward"]] == [0, 2]


def test_teleoperation_prints_the_guides_lines(tools: Tools) -> None:
    lines = teleoperated(case_of("004_teleop"), tools, 0.9, "reward.use_reward_prob=false")
    assert lines[0] == "[TeleopWorker] Starting teleoperation loop."
    ready = "[TeleopWorker] EmbodiedRewardWorker ready: type=EmbodiedRewardWorker | reward_threshold=0.200"
    assert lines[1] == ready
    assert steps(lines) == [f"Step {number} | rm_reward: 1 | success: True" for number in range(6)]


@pytest.mark.slow
def test_the_time_of_scoring_is_measured_where_components_are_placed(tools: Tools) -> None:
    """Guide 002: `time/compute_model_rewards`, per step."""
    fixed(0.7).save(tools.here / "model")
    lines = [*PPO, f"reward.model.model_path={tools.here / 'model'}", "env.train.cameras=[front]",
             "env.eval.cameras=[front]", f"runner.logger.log_path={tools.here / 'run'}",
             "cluster.component_placement.reward=0-0"]  # fmt: skip
    run(case_of("002_pay").load(*lines, preset="panda_ppo_mlp_resnet_reward"))
    rows = [json.loads(line) for line in Path(tools.here / "run/metrics.jsonl").read_text().splitlines()]
    times = [row["time/compute_model_rewards"] for row in rows if "time/compute_model_rewards" in row]
    assert times and min(times) > 0
