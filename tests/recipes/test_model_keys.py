"""Keys beside a saved model: the model wins, one line says where they differ, and runs record what they used."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from referee.config import load
from referee.config.reward_training import BinaryClassifierConfig, ResNetModelConfig
from referee.models import Artifact, ModelSpec, build
from referee.models.contract import RewardModel
from referee.models.packed import Packed
from referee.recipes.model_keys import as_continued, as_scored
from referee.recipes.teleop import teleop
from referee.recipes.train_policy import train_policy
from referee.recipes.train_reward import job_of, train_reward
from referee.rewards.classifier import open_model
from referee.training.data import open_data
from referee.training.recipe import make_model

SCORES = ["env.train.num_envs=4", "env.train.num_threads=1", "env.train.max_episode_steps=5", "env.eval.num_envs=4",
          "env.eval.num_threads=1", "runner.film=false", "runner.eval_episodes=0", "runner.max_steps=20",
          "algorithm.rollout_steps=5", "algorithm.critic_warmup=0", "actor.global_batch_size=20",
          "reward.alarm.enabled=false"]  # fmt: skip
WRONG = ["reward.model.hidden_dim=999", "reward.model.model_type=binary_classifier", "reward.model.precision=bf16"]


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "taken from the file" in record.getMessage()]


def frames(count: int = 16) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 2, 64, 64, 3), np.uint8)


def types_seen(model: RewardModel) -> set[torch.dtype]:
    """The types that the encoder's convolutions give while it scores."""
    found: set[torch.dtype] = set()
    hooks = [
        layer.register_forward_hook(lambda module, inputs, output: found.add(output.dtype))
        for layer in model.encoder.modules()
        if isinstance(layer, torch.nn.Conv2d)
    ]
    model.logits(frames(2))
    for hook in hooks:
        hook.remove()
    return found


def test_a_run_says_what_differs_and_records_what_ran(
    refinable: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [f"reward.model.model_path={refinable}", *WRONG, *SCORES, f"runner.logger.log_path={tmp_path / 'run'}"]
    with caplog.at_level(logging.WARNING):
        train_policy(load("panda_ppo_mlp_resnet_reward", lines))
    (line,) = warned(caplog)
    assert line == (
        f"{refinable} has model_type=resnet, not binary_classifier; hidden_dim=8, not 999: taken from the file"
    )
    recorded = load(str(tmp_path / "run/config.yaml"))
    model = recorded.config.reward.model
    assert (model.hidden_dim, model.model_type, model.precision) == (8, "resnet", "bf16")  # type: ignore[union-attr]
    assert model.arch is None and model.image_size is None  # type: ignore[union-attr]
    caplog.clear()
    assert as_scored(recorded).config == recorded.config and not warned(caplog)


def test_precision_has_its_effect(refinable: Path) -> None:
    own = Artifact.load(refinable)
    assert types_seen(own.model) == {torch.float32}

    def opened(*more: str) -> Artifact:
        config = load("panda_ppo_mlp_resnet_reward", [f"reward.model.model_path={refinable}", *more]).config
        return open_model(config.reward.model)  # type: ignore[arg-type]

    half = opened("reward.model.precision=bf16")
    assert types_seen(half.model) == {torch.bfloat16}
    exact, rounded = own.logits(frames()), half.logits(frames())
    assert not np.array_equal(exact, rounded) and np.abs(exact - rounded).max() < 0.05
    np.testing.assert_array_equal(Packed.of(half).unpacked().logits(frames()), rounded)  # as it travels to workers
    np.testing.assert_array_equal(opened("reward.model.precision=fp32").logits(frames()), exact)
    np.testing.assert_array_equal(opened().logits(frames()), exact)


def test_a_model_saved_in_bf16_is_scored_in_fp32_where_that_is_asked_for(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = build(ModelSpec(arch="resnet10", width=4, cameras=("front", "side"), hidden_dim=8, precision="bf16")).eval()
    Artifact(net).save(tmp_path / "model")
    torch.save({"model_state_dict": net.state_dict(), "config": net.spec.to_json()}, tmp_path / "model.pt")
    for place in ("model", "model.pt"):
        path = tmp_path / place
        assert types_seen(Artifact.open(path).model) == {torch.bfloat16}
        chosen = Artifact.open(path, ModelSpec(precision="fp32"), {"precision"})
        assert types_seen(chosen.model) == {torch.float32} and chosen.spec.hidden_dim == 8


def test_names_of_the_main_camera_are_no_difference(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Artifact(build(ModelSpec(arch="resnet10", width=4, cameras=("front",)))).save(tmp_path / "model")
    lines = [f"reward.model.model_path={tmp_path / 'model'}", "reward.model.cameras=[base_camera]"]
    loaded = as_scored(load("panda_ppo_mlp_resnet_reward", lines))
    assert loaded.config.reward.model.cameras == ("front",) and not warned(caplog)  # type: ignore[union-attr]
    lines[1] = "reward.model.cameras=[side]"
    as_scored(load("panda_ppo_mlp_resnet_reward", lines))
    (line,) = warned(caplog)
    assert "has cameras=front, not side: taken from the file" in line


def test_teleoperation_records_the_model_as_it_is(
    refinable: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [f"reward.model.model_path={refinable}", *WRONG, "env@env.eval=panda", "runner.policy=random",
             "env.eval.num_envs=1", "env.eval.num_threads=1", "~env.eval.use_spacemouse", "~env.eval.target_ee_pose",
             "runner.max_steps=2", f"runner.logger.log_path={tmp_path / 'run'}"]  # fmt: skip
    teleop(load("realworld_teleop", lines))
    (line,) = warned(caplog)
    assert "hidden_dim=8, not 999" in line
    model = load(str(tmp_path / "run/config.yaml")).config.reward.model
    assert (model.hidden_dim, model.model_type, model.precision) == (8, "resnet", "bf16")  # type: ignore[union-attr]


# --- a model that goes on learning ---


def continued(path: Path, *lines: str) -> ResNetModelConfig:
    loaded = as_continued(load("reward_training", ["data.data_path=d", f"actor.model.model_path={path}", *lines]))
    model = loaded.config.actor.model
    assert isinstance(model, ResNetModelConfig)
    return model


def test_what_goes_on_learning_keeps_what_it_is(refinable: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = continued(refinable)
    assert (model.width, model.hidden_dim, model.arch) == (4, 8, "resnet10") and not warned(caplog)
    model = continued(refinable, "actor.model.hidden_dim=256", "actor.model.width=16", "actor.model.dropout=0.3",
                      "actor.model.precision=bf16", "actor.model.freeze_encoder=true")  # fmt: skip
    (line,) = warned(caplog)  # 256 and 16 are the defaults, but somebody has named them here
    assert line.endswith("has width=4, not 16; hidden_dim=8, not 256: taken from the file")
    assert (model.width, model.hidden_dim) == (4, 8)
    assert (model.dropout, model.precision, model.freeze_encoder) == (0.3, "bf16", True)


def test_another_type_of_model_is_recorded_as_that_type(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    net = build(ModelSpec(model_type="binary_classifier", arch="resnet10", width=4, num_spatial_blocks=3, hidden_dim=8))
    Artifact(net).save(tmp_path / "model")
    torch.save({"model_state_dict": net.state_dict()}, tmp_path / "model.pt")
    for place in ("model", "model.pt"):
        model = continued(tmp_path / place, "actor.model.model_type=resnet")
        assert isinstance(model, BinaryClassifierConfig) and (model.num_spatial_blocks, model.hidden_dim) == (3, 8)
        assert "model_type=binary_classifier, not resnet" in warned(caplog)[-1]


def test_what_a_training_may_change_is_changed(refinable: Path, tmp_path: Path) -> None:
    lines = [f"data.data_path={refinable.parent}", f"actor.model.model_path={refinable}", "actor.model.hidden_dim=999",
             "actor.model.dropout=0.3", "actor.model.precision=bf16", "runner.max_epochs=1",
             f"runner.logger.log_path={tmp_path / 'run'}"]  # fmt: skip
    loaded = as_continued(load("reward_training", lines))
    options = job_of(loaded.config, tmp_path)
    data = open_data(options.data, tmp_path / "data", lambda line: None)
    model = make_model(options, data, lambda line: None)
    assert [each.p for each in model.modules() if isinstance(each, torch.nn.Dropout)] == [0.3]
    assert types_seen(model.eval()) == {torch.bfloat16}
    train_reward(load("reward_training", lines))
    recorded = load(str(tmp_path / "run/config.yaml")).config.actor.model
    assert (recorded.hidden_dim, recorded.width, recorded.dropout) == (8, 4, 0.3)  # type: ignore[union-attr]
    saved = Artifact.load(tmp_path / "run/checkpoints/best_model").spec
    assert (saved.hidden_dim, saved.dropout, saved.precision) == (8, 0.3, "bf16")
