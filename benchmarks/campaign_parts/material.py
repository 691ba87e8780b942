"""Small real material for the campaign: episodes with pictures, a model that can be refined, a tiny language model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

EPISODES = 24


@dataclass(frozen=True)
class Material:
    """Where everything is."""

    root: Path

    @property
    def episodes(self) -> Path:
        """A store."""
        return self.root / "episodes"

    @property
    def model(self) -> Path:
        """An artifact, beside frames that it might have learned from."""
        return self.root / "model"

    @property
    def vlm(self) -> Path:
        """A Qwen3-VL of some ten thousand parameters."""
        return self.root / "vlm"

    @property
    def windows(self) -> Path:
        """What `dataset windows` makes of the episodes."""
        return self.root / "windows"


def make(root: Path) -> None:
    """Write all of it; the same for the same version of Referee."""
    import torch

    from referee.cli import main
    from referee.config import load
    from referee.datasets.payload import PayloadWriter
    from referee.episodes import EpisodeStore
    from referee.models import Artifact, Calibration, ModelSpec, Reference, build
    from referee.models.artifact import embed
    from referee.models.vlm.tiny import TinyOptions, tiny_init
    from referee.recipes import run

    torch.set_num_threads(1)
    material = Material(root)
    lines = [f"runner.num_episodes={EPISODES}", "runner.policy=expert", "env.eval.max_episode_steps=16",
             "env.eval.num_envs=8", "env.eval.data_collection.enabled=true", "env.eval.num_threads=1",
             f"env.eval.data_collection.save_dir={material.episodes}", "env.eval.cameras=[front,side]",
             "env.eval.task=Reach", "runner.film=false", f"runner.logger.log_path={root / 'run'}"]  # fmt: skip
    run(load("panda_random", lines))
    images = np.concatenate(
        [np.concatenate([each.observations["main_images"][:, None], each.observations["extra_view_images"]], 1)
         for each in EpisodeStore(material.episodes)]
    )  # fmt: skip
    parts = {"train": images[:64], "val": images[64:128]}
    for name, some in parts.items():
        with PayloadWriter(root / f"{name}.pt") as writer:
            writer.add(some, np.arange(len(some)) % 2)
            writer.finish({"cameras": ["front", "side"]})
    torch.manual_seed(0)
    net = build(ModelSpec(arch="resnet10", width=4, image_size=64, cameras=("front", "side"), hidden_dim=8)).eval()
    files = {name: [str(root / f"{name}.pt")] for name in parts}
    reference = Reference.of(embed(net, parts["val"]), parts["val"]).calibrated(embed(net, parts["val"]))
    Artifact(net, Calibration(), {"files": files}, reference).save(material.model)
    small = TinyOptions(hidden=32, layers=1, heads=2, vision_hidden=32, vision_depth=1, patch=16, image_size=32)
    tiny_init(material.vlm, small)
    code = main(["dataset", "windows", "--raw-data-path", str(material.episodes), "--output-dir",
                 str(material.windows), "--window-size", "4", "--num-samples-per-episode", "0"])  # fmt: skip
    if code:
        raise SystemExit(f"the windows could not be made (exit code {code})")


def preload() -> None:
    """Import what forked processes need, once; nothing is drawn and no thread is started here."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    import referee.cli
    import referee.commands
    import referee.envs.franka.env
    import referee.models.vlm.qwen
    import referee.recipes.train_policy
    import referee.recipes.train_reward
    import referee.recipes.train_vlm
    import referee.serving

    torch.set_num_threads(1)
    assert referee.cli.main is not None
