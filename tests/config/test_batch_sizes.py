"""A batch size that nobody names divides the rollout; one that somebody names is kept, or refused."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from referee.config import load, show, to_yaml
from referee.config.batches import minibatch_size
from referee.errors import ConfigError
from referee.learn.checks import check

PPO = [
    "panda_ppo_mlp",
    "panda_ppo_cnn",
    "panda_ppo_mlp_resnet_reward",
    "panda_ppo_mlp_qwentrend_reward",
    "panda_ppo_mlp_qwentrend_collect",
    "maniskill_ppo_mlp",
    "maniskill_ppo_cnn",
    "maniskill_ppo_mlp_resnet_reward",
    "maniskill_ppo_mlp_qwentrend_reward",
    "maniskill_ppo_mlp_qwentrend_collect",
]


def lines(preset: str) -> list[str]:
    return ["reward.model.model_path=/nowhere"] if preset.endswith("_reward") else []


@pytest.mark.parametrize("num_envs", [1, 3, 8, 48, 64])
@pytest.mark.parametrize("preset", PPO)
def test_any_number_of_environments_will_do(preset: str, num_envs: int) -> None:
    config = load(preset, [*lines(preset), f"env.train.num_envs={num_envs}"]).config
    check(config)
    samples, size = num_envs * config.algorithm.rollout_steps, config.actor.global_batch_size
    assert isinstance(size, int) and samples % size == 0
    assert 2 <= samples // size <= 8  # minibatches


@pytest.mark.parametrize(
    ("preset", "size"),
    [
        ("panda_ppo_mlp", 800),
        ("panda_ppo_cnn", 400),
        ("maniskill_ppo_mlp", 1600),
        ("maniskill_ppo_cnn", 1600),
        ("panda_sac_mlp", 256),
        ("panda_rlpd_mlp", 128),
    ],
)
def test_the_presets_learn_in_batches_as_before(preset: str, size: int) -> None:
    assert load(preset).config.actor.global_batch_size == size


def test_what_ran_is_recorded(tmp_path: Path) -> None:
    loaded = load("panda_ppo_mlp", ["env.train.num_envs=8"])
    assert "global_batch_size: 100 " in show(loaded)
    (tmp_path / "config.yaml").write_text(to_yaml(loaded))
    assert load(str(tmp_path / "config.yaml")).config == loaded.config


def test_a_size_that_somebody_names_is_kept_or_refused(tmp_path: Path) -> None:
    kept = load("panda_ppo_mlp", ["actor.global_batch_size=50", "env.train.num_envs=8"]).config
    check(kept)
    assert kept.actor.global_batch_size == 50
    with pytest.raises(
        ConfigError, match=r"global_batch_size=64 does not divide the 400 samples .* e\.g\. 100, or leave"
    ):
        check(load("panda_ppo_mlp", ["actor.global_batch_size=64", "env.train.num_envs=8"]).config)
    mine = tmp_path / "mine.yaml"
    mine.write_text("defaults: [panda_ppo_mlp, _self_]\nactor: {global_batch_size: 320}\n")
    check(load(str(mine)).config)
    with pytest.raises(ConfigError, match="global_batch_size=320 does not divide the 400 samples"):
        check(load(str(mine), ["env.train.num_envs=8"]).config)
    with pytest.raises(ConfigError, match="global_batch_size"):
        load("panda_ppo_mlp", ["actor.global_batch_size=0"])


def test_the_number_of_environments_is_still_checked() -> None:
    for wrong in ("0", "many", "-3"):
        with pytest.raises(ConfigError, match=r"env\.train\.num_envs"):
            load("panda_ppo_mlp", [f"env.train.num_envs={wrong}"])


@given(st.integers(1, 20_000))
def test_the_nearest_divisor(samples: int) -> None:
    size, target = minibatch_size(samples), min(samples / 4, 1600)
    ratio = max(size / target, target / size)
    assert samples % size == 0
    assert all(ratio <= max(each / target, target / each) for each in range(1, samples + 1) if samples % each == 0)


@pytest.mark.alone
def test_a_number_beyond_all_measure_does_not_hang() -> None:
    for samples in (10**30, 10**30 + 57, 10**400):
        began = time.perf_counter()
        size = minibatch_size(samples)
        assert samples % size == 0 and 1 <= size <= 1600**2
        assert time.perf_counter() - began < 5
