"""What a policy is rewarded with: keys of `reward` in the five guides, measured in the first rollout of a real PPO."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tests.documented.cases import BLOCKS, Case, Tools, effect, no_effect
from tests.documented.smaller import PPO

from referee.config import Config, load
from referee.learn.build import make_rewards
from referee.learn.source import InlineSource
from referee.learn.trainer import Trainer
from referee.models import Artifact, Calibration, ModelSpec, build

IMAGES = "000_pay 001_reward 001_rlpd 001_troubleshooting* 002_pay 003_pay 004_reward"
"""Blocks whose reward is that of an image model."""
STEPS, ENVS = 8, 4
SURE = 0.99


def fixed(probability: float, **spec: object) -> Artifact:
    """A model that gives the same probability to all frames."""
    small = {"arch": "resnet10", "width": 4, "image_size": 64, "cameras": ("front",), "hidden_dim": 8}
    torch.manual_seed(0)
    net = build(ModelSpec(**{**small, **spec})).eval()  # type: ignore[arg-type]
    last = net.classifier[3]  # type: ignore[union-attr, index]
    with torch.no_grad():
        last.weight.zero_()  # type: ignore[union-attr]
        last.bias.fill_(float(np.log(probability / (1 - probability))))  # type: ignore[union-attr]
    return Artifact(net, Calibration())


@dataclass(frozen=True)
class Rewards:
    """Of one rollout, f32[steps,envs]: the environment's own, and those that a policy learns from."""

    own: np.ndarray
    learned_from: np.ndarray
    mode: str
    """`reward_mode` of the configuration."""


def rollout(config: Config, tools: Tools, folder: Path, cameras: str = "front") -> Rewards:
    """A rollout of PPO on the Panda, rewarded as a configuration says."""

    def made(_: Path) -> Trainer:
        views = [f"env.{side}.cameras=[{cameras}]" for side in ("train", "eval")]
        return Trainer(load("panda_ppo_mlp", [*PPO, *views]).config)

    training: Trainer = tools.once(f"training {cameras}", made)
    source = training.source
    assert isinstance(source, InlineSource)
    (reward,), made_here = make_rewards(config, training.env, 1), source.rollout
    source.collector.collect(source.env, made_here, reward if reward.learned else None)
    own = made_here.rewards.copy()
    reward.relabel(made_here)
    assert own.shape == (STEPS, ENVS) and (made_here.truncated.any(1) == (np.arange(STEPS) == STEPS - 1)).all()
    return Rewards(own, made_here.rewards.copy(), config.reward.reward_mode)


def both(case: Case, tools: Tools, probability: float, *overrides: str) -> Rewards:
    """Both rewards of a rollout, where the model gives this probability to every frame."""

    def collected(folder: Path) -> Rewards:
        fixed(probability).save(folder / "model")
        lines = [*PPO, f"reward.model.model_path={folder / 'model'}", *overrides]
        return rollout(case.load(*lines, preset=on_panda(case)).config, tools, folder)

    found: Rewards = tools.once(f"{case.block} {probability} {overrides}", collected)
    return found


def rewards(case: Case, tools: Tools, probability: float, *overrides: str) -> np.ndarray:
    """f32[steps,envs]: what a policy learns from, where the model gives this probability to every frame."""
    return both(case, tools, probability, *overrides).learned_from


def scored(case: Case, tools: Tools) -> np.ndarray:
    """bool[steps,envs]: which states the model scores; episodes end with the last step of the rollout."""
    where = np.ones((STEPS, ENVS), bool)
    if both(case, tools, SURE).mode == "terminal":
        where[:-1] = False
    return where


def on_panda(case: Case) -> str:
    """The preset for a block of image rewards in the embedded simulation."""
    return "panda_ppo_mlp_resnet_reward" if BLOCKS[case.block].preset.endswith("resnet_reward") else "panda_ppo_mlp"


@effect("reward.use_reward_model", blocks=IMAGES)
def the_model_rewards(case: Case, tools: Tools) -> None:
    assert case.value is True
    weight, model = case.config.reward.reward_weight, rewards(case, tools, SURE)
    np.testing.assert_array_equal(model[scored(case, tools)], np.float32(weight))
    own = both(case, tools, SURE).own
    assert len(np.unique(own)) > 8, "the environment's dense reward differs from state to state"


@effect("reward.use_reward_model", blocks="000_collect 003_collect")
def the_environment_rewards(case: Case, tools: Tools) -> None:
    assert case.value is False
    off = case.load(*PPO, "reward.collect_data=false", preset="panda_ppo_mlp").config
    found = rollout(off, tools, tools.folder)
    np.testing.assert_array_equal(found.learned_from, found.own)


@effect("reward.reward_mode", blocks=IMAGES)
def states_that_are_scored(case: Case, tools: Tools) -> None:
    found = rewards(case, tools, SURE)
    every_step = case.value == "per_step"
    np.testing.assert_array_equal(found[:-1] != 0, every_step)
    assert (found[-1] != 0).all()


@effect("reward.success_reward")
def reward_of_a_success(case: Case, tools: Tools) -> None:
    weight = case.config.reward.reward_weight
    np.testing.assert_allclose(rewards(case, tools, SURE)[scored(case, tools)], case.value * weight)
    more = rewards(case, tools, SURE, "reward.success_reward=3.5")
    np.testing.assert_allclose(more[scored(case, tools)], 3.5 * weight)


@effect("reward.fail_reward")
def reward_of_a_failure(case: Case, tools: Tools) -> None:
    weight = case.config.reward.reward_weight
    np.testing.assert_allclose(rewards(case, tools, 1 - SURE)[scored(case, tools)], case.value * weight)
    less = rewards(case, tools, 1 - SURE, "reward.fail_reward=-0.5")
    np.testing.assert_allclose(less[scored(case, tools)], -0.5 * weight)


@effect("reward.use_negative_reward")
def a_failure_costs_one(case: Case, tools: Tools) -> None:
    np.testing.assert_array_equal(rewards(case, tools, 1 - SURE)[scored(case, tools)], -1.0)
    np.testing.assert_array_equal(rewards(case, tools, SURE)[scored(case, tools)], 1.0)


@effect("reward.reward_threshold", blocks=IMAGES)
def what_is_below_the_threshold_is_no_success(case: Case, tools: Tools) -> None:
    weight = np.float32(case.config.reward.reward_weight)
    np.testing.assert_array_equal(rewards(case, tools, case.value - 0.05)[scored(case, tools)], 0.0)
    np.testing.assert_array_equal(rewards(case, tools, case.value + 0.05)[scored(case, tools)], weight)


@effect("reward.combine_mode", "reward.mode")
def how_both_rewards_are_combined(case: Case, tools: Tools) -> None:
    weight, where = case.config.reward.reward_weight, scored(case, tools)
    assert case.config.reward.combine_mode == case.value == "replace"
    np.testing.assert_allclose(rewards(case, tools, SURE), weight * where, rtol=1e-6)
    added = both(case, tools, SURE, "reward.combine_mode=add")
    np.testing.assert_allclose(added.learned_from, added.own + weight * where, rtol=1e-6)


@effect("reward.reward_weight", blocks=IMAGES)
def weight_of_the_models_reward(case: Case, tools: Tools) -> None:
    np.testing.assert_allclose(rewards(case, tools, SURE), case.value * scored(case, tools))
    np.testing.assert_allclose(rewards(case, tools, SURE, "reward.reward_weight=0.25"), 0.25 * scored(case, tools))


@effect("reward.env_reward_weight", blocks=IMAGES)
def weight_of_the_environments_reward(case: Case, tools: Tools) -> None:
    assert case.value == 0.0
    weight = case.config.reward.reward_weight
    np.testing.assert_allclose(rewards(case, tools, SURE), weight * scored(case, tools))
    mixed = both(case, tools, SURE, "reward.combine_mode=weighted", "reward.env_reward_weight=0.5")
    np.testing.assert_allclose(mixed.learned_from, 0.5 * mixed.own + weight * scored(case, tools), rtol=1e-5)


@effect("reward.reward_model.reward_type")
def zero_or_one_from_a_probability_of_a_half(case: Case, tools: Tools) -> None:
    assert case.value == "binary"
    np.testing.assert_array_equal(rewards(case, tools, 0.55)[scored(case, tools)], 1.0)
    np.testing.assert_array_equal(rewards(case, tools, 0.45)[scored(case, tools)], 0.0)


no_effect("groups of workers are called as in cluster.component_placement", "*.group_name")
