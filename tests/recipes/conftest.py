"""What several tests of recipes share: a small reward model that can be refined."""

from pathlib import Path

import numpy as np
import pytest
import torch

from referee.config import load
from referee.datasets.payload import PayloadWriter
from referee.envs.panda.env import PandaVectorEnv
from referee.models import Artifact, Calibration, ModelSpec, Reference, build
from referee.models.artifact import embed
from referee.recipes import run as run_recipe


def pictures(count: int, seed: int) -> np.ndarray:
    env = PandaVectorEnv(load("panda_ppo_mlp", ["env.train.num_envs=8", "env.train.num_threads=1"]).config.env.train)  # type: ignore[arg-type]
    env.reset(seed=seed)
    found = []
    while sum(map(len, found)) < count:
        env.step(np.random.default_rng(len(found)).uniform(-1, 1, (8, 4)).astype(np.float32))
        views = env.render_cameras()
        found.append(np.concatenate([views["main_images"][:, None], views["extra_view_images"]], 1))
    env.close()
    return np.concatenate(found)[:count]


@pytest.fixture(scope="session")
def refinable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model that nobody trained, beside frames that it might have learned from."""
    folder = tmp_path_factory.mktemp("model")
    for name, seed in (("train", 0), ("val", 1)):
        images = pictures(32, seed)
        with PayloadWriter(folder / f"{name}.pt") as writer:
            writer.add(images, np.arange(32) % 2)
            writer.finish({"cameras": ["front", "side"]})
    torch.manual_seed(0)
    net = build(ModelSpec(arch="resnet10", width=4, image_size=64, cameras=("front", "side"), hidden_dim=8)).eval()
    files = {name: [str(folder / f"{name}.pt")] for name in ("train", "val")}
    reference = Reference.of(embed(net, images), images).calibrated(embed(net, images))
    Artifact(net, Calibration(), {"files": files}, reference).save(folder / "model")
    return folder / "model"


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four short episodes of a policy that acts at random, seen by both cameras."""
    folder = tmp_path_factory.mktemp("recorded")
    lines = ["runner.num_episodes=4", "runner.policy=random", "env.eval.max_episode_steps=12", "env.eval.num_envs=4",
             "env.eval.data_collection.enabled=true", f"env.eval.data_collection.save_dir={folder / 'episodes'}",
             "env.eval.cameras=[front,side]", "runner.film=false",
             f"runner.logger.log_path={folder / 'run'}", "env.eval.num_threads=1"]  # fmt: skip
    run_recipe(load("panda_random", lines))
    return folder / "episodes"
