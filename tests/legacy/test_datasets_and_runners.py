"""What records, reads and runs, under the names of the guides."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch.utils.data import DataLoader

from referee.compat import DataCollectorWrapper, EmbodiedRunner, RewardBinaryDataset
from referee.config import PandaEnvConfig
from referee.envs import make_vec
from referee.envs.policies import make_policy
from referee.errors import RefereeError


def test_reward_binary_dataset(tmp_path: Path) -> None:
    """004: {"images": list[Tensor], "labels": list[int], "metadata": dict} is loaded directly."""
    images = [torch.full((3, 16, 16), number, dtype=torch.uint8) for number in range(6)]
    torch.save({"images": images, "labels": [0, 1, 0, 1, 1, 0], "metadata": {"split": "train"}}, tmp_path / "train.pt")
    dataset = RewardBinaryDataset(tmp_path / "train.pt")
    assert len(dataset) == 6 and dataset.metadata["split"] == "train"
    batches = list(DataLoader(dataset, batch_size=4))
    labels = torch.cat([batch[1] for batch in batches])
    assert labels.tolist() == [0, 1, 0, 1, 1, 0]
    assert [int(value) for batch in batches for value in batch[0].float().amax((1, 2, 3))] == list(range(6))


def test_data_collector_wrapper_of_its_section(tmp_path: Path) -> None:
    """002: save_dir, target_success and target_failure of `reward_data_collection`."""
    section = {"enabled": True, "save_dir": str(tmp_path / "data"), "target_success": 2, "target_failure": 1}
    env = make_vec(PandaEnvConfig(task="Reach", num_envs=4, max_episode_steps=10))
    wrapper = DataCollectorWrapper(env, OmegaConf.create(section))
    act = make_policy(env, "expert", noise=0.8, seed=0)
    wrapper.reset(seed=0)
    for _ in range(80):
        wrapper.step(act())
    wrapper.close()
    kept = sorted((tmp_path / "data").rglob("*.pkl"))
    assert [path.parent.name for path in kept] == ["failure", "success", "success"]
    content = pickle.loads(kept[-1].read_bytes())
    assert (content["success"], content["label"]) == (True, 1)
    assert np.asarray(content["frames"][0]["obs"]["main_images"]).shape == (64, 64, 3)


def test_embodied_runner_of_a_configuration(tmp_path: Path) -> None:
    cfg = OmegaConf.create(
        {
            "defaults": ["panda_ppo_mlp"],
            "env": {"train": {"num_envs": 4, "task": "Reach"}, "eval": {"num_envs": 2}},
            "runner": {
                "max_steps": 40,
                "eval_episodes": 2,
                "film": False,
                "logger": {"log_path": str(tmp_path / "run")},
            },
            "algorithm": {"rollout_steps": 10},
            "actor": {"global_batch_size": 20, "model": {"hidden_dims": [8]}},
        }
    )
    runner = EmbodiedRunner(cfg)
    runner.init_workers()
    runner.run()
    assert json.loads((tmp_path / "run/result.json").read_text())["steps"] == 40
    with pytest.raises(RefereeError, match="overrides go on top of a preset"):
        EmbodiedRunner(cfg, ["runner.max_steps=3"]).init_workers()
