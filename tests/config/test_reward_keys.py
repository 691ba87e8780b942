"""Keys of training a reward model: the canonical ones, and those of the older documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from referee.config import load
from referee.config.learning import ActorConfig
from referee.config.reward_training import BinaryClassifierConfig, ResNetModelConfig, RewardActorConfig
from referee.errors import ConfigError
from referee.models.spec import ModelSpec
from referee.recipes.train_reward import job_of
from referee.training.described import spec_fields

pytestmark = pytest.mark.usefixtures("quick")

DOCUMENT_003 = """\
defaults:
  - override hydra/job_logging: stdout
cluster:
  num_nodes: 1
  component_placement:
    reward: all
runner:
  task_type: embodied
  output_dir: ../results
  experiment_name: reward-model-training
  recipe: train_reward
reward:
  group_name: "RewardGroup"
  training_backend: simple
  gpu_id: 0
  global_batch_size: 16
  num_epochs: 7
  log_interval: 100
  save_interval: 1000
  save_dir: ${runner.output_dir}/${runner.experiment_name}/checkpoints
  model:
    image_keys: ["base_camera"]
    image_size: [3, 64, 64]
    hidden_dim: 128
    num_spatial_blocks: 4
    pretrained_encoder_path: null
    use_pretrain: false
    freeze_encoder: true
  optim:
    optimizer: adam
    lr: 2e-4
    clip_grad: 1.0
  data:
    positive_dir: ./reward_data/positive
    negative_dir: ./reward_data/negative
    image_key: base_camera
    num_workers: 4
"""


def actor(*overrides: str, preset: str = "reward_training") -> RewardActorConfig:
    found = load(preset, list(overrides)).config.actor
    assert isinstance(found, RewardActorConfig)
    return found


def test_the_recipe_chooses_the_section() -> None:
    assert isinstance(load("panda_ppo_mlp").config.actor, ActorConfig)
    assert isinstance(actor().model, ResNetModelConfig)
    assert (actor().optim.lr, actor().optim.schedule) == (3e-3, "cosine")
    with pytest.raises(ConfigError, match=r"actor\.model\.hidden_dims .* another kind of actor\.model"):
        load("reward_training", ["+actor.model.hidden_dims=[8]"])


def test_the_documented_overrides_of_001(tmp_path: Path) -> None:
    config = load(
        "reward_training",
        [
            f"data.data_path={tmp_path}",
            "data.num_samples_per_episode=0",
            "data.fail_success_ratio=3.0",
            "actor.global_batch_size=32",
            "actor.micro_batch_size=16",
            "runner.max_epochs=100",
            "runner.val_check_interval=10",
            "runner.save_interval=10",
            "runner.early_stop.patience=10",
            'data.debug_save_dir="logs/training_data_debug_realworld"',
            'runner.logger.log_path="logs/reward_model_realworld"',
        ],
    )
    assert not config.notices
    options = job_of(config.config, Path("run"))
    assert (options.fit.global_batch_size, options.fit.micro_batch_size, options.fit.chunks()) == (32, 16, 2)
    assert (options.fit.early_stop.patience, options.fit.val_check_interval, options.fit.save_interval) == (10, 10, 10)
    assert options.data.fail_success_ratio == 3.0


def test_the_documented_keys_of_004() -> None:
    lines = ["actor.model.model_type=resnet", "actor.model.arch=resnet18", "actor.model.pretrained=False",
             "actor.model.image_size=[3,128,128]", "data.train_data_paths=a/train.pt",
             "data.val_data_paths=[a/val.pt]"]  # fmt: skip
    loaded = load("reward_training", lines)
    options = job_of(loaded.config, Path("run"))
    assert (options.model.image_size, options.model.arch, options.pretrained) == (128, "resnet18", None)
    assert options.data.train_data_paths == ("a/train.pt",)
    assert options.data.val_data_paths == ("a/val.pt",)


def test_a_file_of_003(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(DOCUMENT_003)
    config = load(str(tmp_path / "mine.yaml")).config
    assert isinstance(config.actor, RewardActorConfig)
    model = config.actor.model
    assert isinstance(model, BinaryClassifierConfig)
    assert (model.hidden_dim, model.num_spatial_blocks, model.pooling, model.image_size) == (128, 4, "average", 64)
    assert (config.actor.optim.lr, config.actor.optim.optimizer, config.actor.global_batch_size) == (2e-4, "adam", 16)
    assert (config.runner.max_epochs, config.runner.save_steps, config.runner.log_interval) == (7, 1000, 100)
    assert config.runner.save_dir == "../results/reward-model-training/checkpoints"
    assert config.data.cameras == ("base_camera",)
    assert config.data.positive_dir == "./reward_data/positive"


def test_the_documented_overrides_of_003() -> None:
    loaded = load(
        "train_reward_model",
        ["reward.gpu_id=1", "reward.global_batch_size=64", "reward.num_epochs=50", "reward.save_interval=500"],
    )
    assert (loaded.config.runner.max_epochs, loaded.config.runner.save_steps) == (50, 500)
    assert "reward.gpu_id (command line) has no effect" in " ".join(loaded.notices)


def test_reward_only_from_the_entry_of_policies() -> None:
    """Document 002: the same entry point, and `only` makes it train a reward model."""
    lines = ["reward_training.enabled=True", "reward_training.data_path=d", "reward_training.epochs=9",
             "reward_training.micro_batch_size=32", "reward_training.global_batch_size=64", "reward_training.lr=1e-4",
             "reward_training.save_dir=out"]  # fmt: skip
    config = load("panda_ppo_mlp", ["reward_training.only=True", *lines]).config
    assert isinstance(config.actor, RewardActorConfig)
    assert (config.runner.recipe, config.runner.max_epochs, config.actor.optim.lr) == ("train_reward", 9, 1e-4)
    assert (config.data.data_path, config.runner.save_dir) == ("d", "out")
    # Without it, none of these keys may touch the policy.
    policy = load("panda_ppo_mlp", ["reward_training.only=False", *lines])
    assert policy.config.runner.recipe == "train_policy"
    assert policy.config.actor == load("panda_ppo_mlp").config.actor
    assert "reward_training.lr (command line) has no effect" in " ".join(policy.notices)


def test_crops_are_read() -> None:
    config = load("reward_training", ["data.data_path=d", "actor.model.crop=['front:8,4,48,40']"]).config
    assert spec_fields(job_of(config, Path("run")).model)["crop"] == {"front": (8, 4, 48, 40)}
    bad = load("reward_training", ["data.data_path=d", "actor.model.crop=['front:8,4']"]).config
    with pytest.raises(ConfigError, match=r"write camera:top,left,height,width"):
        job_of(bad, Path("run"))


@pytest.mark.parametrize("keys", [ResNetModelConfig, BinaryClassifierConfig])
def test_a_spec_has_the_defaults_of_the_keys(keys: type) -> None:
    """Where they differ, the keys say so: `binary_classifier` is a frozen ResNet10; open keys are null."""
    said, spec = spec_fields(keys()), ModelSpec()
    own = {"model_type", "arch", "freeze_encoder"} if keys is BinaryClassifierConfig else set()
    assert {name for name, value in said.items() if getattr(spec, name) != value} == own
