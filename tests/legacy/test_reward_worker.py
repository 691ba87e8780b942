"""RewardWorker, RewardManager and launch_for_realworld, with the YAML blocks of the guides as their configuration."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from referee.compat import (
    BinaryRewardClassifier,
    EmbodiedRewardWorker,
    FSDPRewardWorker,
    ImageRewardWorker,
    RewardManager,
    RewardWorker,
)
from referee.config import load
from referee.errors import RefereeError
from referee.models import Artifact

DOCUMENTS = Path(__file__).parents[1] / "documented/guides/blocks"
IMAGES = torch.rand(6, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """What `train_reward_model` writes: a dict, of a classifier whose verdicts differ from image to image."""
    return write_checkpoint(tmp_path / "checkpoints/reward_model.pt")


def write_checkpoint(path: Path, **keys: Any) -> Path:
    torch.manual_seed(0)
    model = BinaryRewardClassifier(image_keys=["base_camera"], image_size=[3, 64, 64], **keys).eval()
    with torch.no_grad():  # half of the images are successes
        last = next(layer for layer in reversed(list(model.modules())) if isinstance(layer, torch.nn.Linear))
        last.weight *= 50
        last.bias -= model(IMAGES).sort().values[2:4].mean()
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"epoch": 3, "model_state_dict": model.state_dict(), "train_loss": 0.1, "train_acc": 1.0}, path)
    return path


def probabilities(path: Path) -> torch.Tensor:
    model = BinaryRewardClassifier(image_keys=["base_camera"], image_size=[3, 64, 64]).eval()
    model.load_state_dict(torch.load(path, weights_only=True)["model_state_dict"])
    with torch.no_grad():
        return model(IMAGES).sigmoid()


def guide(checkpoint: Path, **reward_model: Any) -> DictConfig:
    """Guide 000's block for training with a reward model."""
    cfg = OmegaConf.create((DOCUMENTS / "000_pay.yaml").read_text())
    cfg.reward.reward_model.checkpoint_path = str(checkpoint)
    cfg.reward.reward_model.update(reward_model)
    return cfg


def test_init_worker_and_compute_rewards(checkpoint: Path) -> None:
    worker = RewardWorker(guide(checkpoint))
    with pytest.raises(RefereeError, match=r"call init_worker\(\) first"):
        worker.compute_rewards(IMAGES)
    worker.init_worker()
    rewards = worker.compute_rewards(IMAGES)
    assert isinstance(rewards, torch.Tensor) and rewards.shape == (6,)
    expected = (probabilities(checkpoint) > 0.5).float()  # "binary": (probs > 0.5).float()
    assert 0 < expected.sum() < 6
    assert torch.equal(rewards, expected)
    assert torch.equal(worker.compute_rewards({"base_camera": IMAGES}), expected)
    pixels = (IMAGES * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    answer = worker.compute_rewards({"main_images": pixels, "states": np.zeros((6, 3))})
    assert isinstance(answer, np.ndarray) and answer.tolist() == expected.tolist()


def test_continuous_rewards_are_probabilities(checkpoint: Path) -> None:
    worker = EmbodiedRewardWorker(guide(checkpoint, reward_type="continuous"))
    worker.init_worker()
    rewards, chances = worker.compute_rewards(IMAGES), probabilities(checkpoint)
    sure = chances > 0.5  # below the threshold, guides differ
    torch.testing.assert_close(rewards[sure], chances[sure], atol=1e-5, rtol=0)


def test_a_rollout_result(checkpoint: Path) -> None:
    """Observations out of `transitions` or `forward_inputs`: rewards [T,B]."""
    worker = EmbodiedRewardWorker(guide(checkpoint))
    worker.init_worker()
    expected = worker.compute_rewards(IMAGES).reshape(3, 2)
    steps = [IMAGES[start : start + 2] for start in (0, 2, 4)]
    before = torch.zeros(2, 3, 64, 64)
    for rollout in (
        SimpleNamespace(
            transitions=[{"obs": {"base_camera": before}, "next_obs": {"base_camera": each}} for each in steps]
        ),
        SimpleNamespace(transitions=[({"base_camera": before}, {"base_camera": each}) for each in steps]),
        SimpleNamespace(transitions=[], forward_inputs=[{"main_images": each} for each in steps]),
        {"forward_inputs": [{"base_camera": each} for each in steps]},
    ):
        assert torch.equal(worker.compute_rewards(rollout), expected)


def test_all_timesteps_in_one_batch_of_256(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = RewardWorker(guide(checkpoint))
    worker.init_worker()
    artifact, sizes = worker.manager.artifact, []
    seen = artifact.seen

    def watched(images: Any, size: int) -> Any:
        sizes.append(len(images))
        return seen(images, size)

    monkeypatch.setattr(artifact, "seen", watched)
    images = IMAGES[:1].expand(300, 3, 64, 64).reshape(100, 3, 3, 64, 64)
    rewards = worker.compute_batch_rewards({"base_camera": images})
    assert rewards.shape == (100, 3) and sizes == [256, 44]
    assert bool((rewards == worker.compute_rewards(IMAGES[:1])).all())


def test_use_pretrain_is_inferred_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_checkpoint(tmp_path / "averaged.pt", use_pretrain=False)
    worker = RewardWorker(guide(path, use_pretrain=True))
    worker.init_worker()
    assert "pooling=average, not spatial: taken from the file" in caplog.text
    caplog.clear()
    right = RewardWorker(guide(path, use_pretrain=False))
    right.init_worker()
    assert not caplog.text
    assert torch.equal(worker.compute_rewards(IMAGES), right.compute_rewards(IMAGES))


@pytest.mark.parametrize("form", ["omegaconf", "dict", "ours", "section"])
def test_every_form_of_configuration(checkpoint: Path, form: str) -> None:
    cfg = guide(checkpoint)
    given: Any = cfg
    if form == "dict":
        given = OmegaConf.to_container(cfg)
    elif form == "section":
        given = cfg.reward
    elif form == "ours":
        keys = ["reward.use_reward_model=true", f"reward.reward_model.checkpoint_path={checkpoint}"]
        given = load("panda_ppo_mlp", [*keys, "reward.reward_model.image_keys=[base_camera]"]).config
    worker = ImageRewardWorker(given)
    worker.init_worker()
    assert torch.equal(worker.compute_rewards(IMAGES), (probabilities(checkpoint) > 0.5).float())


def test_other_sections_do_not_matter(checkpoint: Path) -> None:
    cfg = guide(checkpoint)
    cfg.rollout = {"backend": "huggingface"}
    cfg.algorithm = {"adv_type": "gae"}
    worker = RewardWorker(cfg)
    worker.init_worker()
    assert worker.compute_rewards(IMAGES).shape == (6,)
    cfg.reward.reward_model.hiden_dim = 3
    with pytest.raises(RefereeError, match="hiden_dim"):
        RewardWorker(cfg)


def test_save_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    worker = RewardWorker(guide(checkpoint))
    worker.init_worker()
    file = worker.save_checkpoint(tmp_path / "saved", 1000)
    assert file == tmp_path / "saved/step_1000/checkpoint.pt"
    values, given = (torch.load(path, weights_only=True) for path in (file, checkpoint))
    assert values["step"] == 1000 and values["model_state_dict"].keys() == given["model_state_dict"].keys()
    assert all(
        torch.equal(value, given["model_state_dict"][name]) for name, value in values["model_state_dict"].items()
    )
    again = RewardWorker(guide(file))
    again.init_worker()
    assert torch.equal(again.compute_rewards(IMAGES), worker.compute_rewards(IMAGES))
    assert worker.save_checkpoint(tmp_path / "mine.pt", 3) == tmp_path / "mine.pt"
    spec = worker.manager.artifact.spec
    assert Artifact.open(tmp_path / "mine.pt", spec).spec == spec


def test_reward_manager(checkpoint: Path) -> None:
    """002: `compute_rewards(observations)` and `to_device(device)`; 001: success and fail rewards, and a threshold."""
    reward = {"use_reward_model": True, "success_reward": 2.0, "fail_reward": -0.5, "reward_threshold": 0.5}
    manager = RewardManager({"reward": {**reward, "resnet": {"checkpoint_path": str(checkpoint)}}})
    manager.to_device("cpu")
    expected = torch.where(probabilities(checkpoint) > 0.5, 2.0, -0.5)
    assert torch.equal(manager.compute_rewards(IMAGES), expected)
    assert torch.equal(manager.compute_rewards({"main_images": IMAGES}), expected)
    assert manager.compute_rewards({"main_images": IMAGES.numpy()}).tolist() == expected.tolist()
    with pytest.raises(RefereeError, match="device nowhere"):
        manager.to_device("nowhere")
    own = RewardManager(Artifact.open(checkpoint))  # as everywhere else
    assert own.compute_rewards(IMAGES).shape == (6,)


def make_trajectories(folder: Path, *, size: int = 32) -> None:
    """Bright frames are successes."""
    random = np.random.default_rng(0)
    for kind, labels in (("positive", [0, 0, 1, 1, 1]), ("negative", [0] * 5)):
        (folder / kind).mkdir(parents=True)
        for number in range(6):
            light = np.array(labels, np.float32)[:, None, None, None]
            images = random.uniform(0, 0.5, (5, 3, size, size)).astype(np.float32) + 0.5 * light
            value = {"images": {"base_camera": images}, "labels": np.array(labels, np.float32)}
            np.save(folder / kind / f"{number:06d}.npy", value, allow_pickle=True)  # type: ignore[arg-type]


@pytest.mark.slow
def test_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """003: the worker trains on reward.data.positive_dir and negative_dir, and saves by steps."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    make_trajectories(Path("reward_data"))
    cfg = OmegaConf.create((DOCUMENTS / "003_train.yaml").read_text())
    cfg.reward.num_epochs, cfg.reward.save_interval, cfg.reward.optim.lr = 8, 5, 1e-3
    cfg.reward.model.image_size, cfg.reward.global_batch_size = [3, 32, 32], 16
    encoder = BinaryRewardClassifier(image_size=32).encoder
    torch.save(encoder.state_dict(), "resnet10_pretrained.pt")
    cfg.reward.model.pretrained_encoder_path = "./resnet10_pretrained.pt"
    worker = RewardWorker(cfg)
    worker.init_worker()
    artifact = worker.fit()
    assert (artifact / "model.safetensors").is_file()
    saved = tmp_path / "results/reward-model-training/checkpoints"
    assert (saved / "step_5/checkpoint.pt").is_file() and (saved / "step_10/checkpoint.pt").is_file()
    lights = torch.stack([torch.full((3, 32, 32), light) for light in (0.25, 0.75)])
    dark, bright = worker.compute_rewards(lights).tolist()
    assert (dark, bright) == (0.0, 1.0)
    last = torch.load(worker.save_checkpoint("mine", 7), weights_only=True)
    assert {"epoch", "model_state_dict", "optimizer_state_dict", "train_loss", "train_acc"} <= last.keys()
    same = FSDPRewardWorker(cfg)
    same.init_worker()
    assert Artifact.load(same.fit()).provenance["step"] > 0


def test_fit_without_data(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(RefereeError, match="positive_dir"):
        RewardWorker(guide(checkpoint)).fit()
    cfg = OmegaConf.create((DOCUMENTS / "003_train.yaml").read_text())
    cfg.reward.data.positive_dir = str(tmp_path / "nowhere")
    with pytest.raises(RefereeError, match="nowhere is not there"):
        RewardWorker(cfg).init_worker()


def teleop(checkpoint: Path) -> DictConfig:
    """Guide 004's block for teleoperation."""
    cfg = OmegaConf.create((DOCUMENTS / "004_teleop.yaml").read_text())
    cfg.reward.model = {"model_path": str(checkpoint), "image_size": [3, 64, 64]}
    return cfg


def test_launch_for_realworld_here(checkpoint: Path) -> None:
    cfg = teleop(checkpoint)
    del cfg.cluster
    with EmbodiedRewardWorker.launch_for_realworld(reward_cfg=cfg, env_idx=0, worker_rank=0) as worker:
        with pytest.raises(RefereeError, match="init_worker"):
            worker.compute_rewards({"main_images": IMAGES}).wait()
        worker.init_worker().wait()
        (rewards,) = worker.compute_rewards({"main_images": IMAGES}).wait()
        assert torch.equal(rewards, (probabilities(checkpoint) >= 0.2).float())  # reward_threshold: 0.2
        (chances,) = worker.compute_probabilities({"main_images": IMAGES}).wait()
        torch.testing.assert_close(chances, probabilities(checkpoint), atol=1e-5, rtol=0)
    section = EmbodiedRewardWorker.launch_for_realworld(cfg.reward, node_rank=0)  # the section alone
    section.init_worker().wait()
    section.close()


@pytest.mark.slow
def test_launch_for_realworld_on_a_cluster(checkpoint: Path) -> None:
    """In a process of its own, at the slot that is named; the model is sent there."""
    cfg = teleop(checkpoint)
    cfg.cluster = {"backend": "ray", "node_groups": [{"label": "4090", "node_ranks": 0}]}
    rewards = (probabilities(checkpoint) >= 0.2).float()
    with EmbodiedRewardWorker.launch_for_realworld(
        reward_cfg=cfg, node_rank=0, node_group_label="4090", hardware_rank=0, env_idx=0, worker_rank=0
    ) as worker:
        checkpoint.unlink()
        worker.init_worker().wait()
        (pid,) = worker.pid().wait()
        assert pid != os.getpid()
        (answer,) = worker.compute_rewards({"main_images": IMAGES}).wait()
        assert torch.equal(answer, rewards)


def test_two_nodes_need_ray(checkpoint: Path) -> None:
    with pytest.raises(RefereeError, match="num_nodes is 2"):
        EmbodiedRewardWorker.launch_for_realworld(teleop(checkpoint))
    with pytest.raises(RefereeError, match=r"'3090' is none of cluster\.node_groups"):
        EmbodiedRewardWorker.launch_for_realworld(teleop(checkpoint), node_group_label="3090")
    with pytest.raises(RefereeError, match="node_rank is 2, but"):
        EmbodiedRewardWorker.launch_for_realworld(teleop(checkpoint), node_rank=2)
