"""`run_reward_training.sh --data` and `preprocess_reward_dataset.py` take the same frames from the same episodes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.episodes.examples import make_episode

from referee.datasets.payload import RewardBinaryDataset
from referee.episodes import EpisodeStore
from referee.episodes.formats.pickled import EpisodePickleWriter
from referee.models import Artifact

ROOT = Path(__file__).parents[2]
SMALL = ["actor.model.width=4", "actor.model.hidden_dim=8", "runner.max_epochs=1", "actor.num_threads=1",
         "actor.global_batch_size=16", "actor.micro_batch_size=16", "runner.logger.logger_backends=[]"]  # fmt: skip


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def record(folder: Path, kind: str) -> Path:
    """Episodes of two cameras."""
    episodes = [
        make_episode(8, pixels=32, extra_views=1, seed=seed, success_from=[4, None][seed % 2], id=f"e{seed}",
                     cameras=("wrist", "front"))
        for seed in range(10)
    ]  # fmt: skip
    if kind == "store":
        EpisodeStore(folder / "raw").append_many(episodes)
    else:
        for episode in episodes:
            EpisodePickleWriter(folder / "raw").append(episode)
    return folder / "raw"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["store", "pickle"])
def test_both_ways_take_the_same_frames(tmp_path: Path, kind: str) -> None:
    raw = record(tmp_path, kind)
    script = str(ROOT / "examples/reward/preprocess_reward_dataset.py")
    run(tmp_path, sys.executable, script, "--raw-data-path", str(raw), "--output-dir", "processed")
    train = str(ROOT / "examples/reward/run_reward_training.sh")
    run(tmp_path, "sh", train, "--data", str(raw), "runner.logger.log_path=direct", *SMALL)
    run(tmp_path, "sh", train, "--data", "processed", "runner.logger.log_path=prepared", *SMALL)
    for side in ("train.pt", "val.pt"):
        prepared, direct = (RewardBinaryDataset(tmp_path / place / side) for place in ("processed", "direct/data"))
        assert prepared.metadata["cameras"] == direct.metadata["cameras"] == ["wrist"]
        assert prepared.metadata["content_hash"] == direct.metadata["content_hash"]
        assert prepared.metadata["frame_of_sample"] == direct.metadata["frame_of_sample"]
    models = [Artifact.load(tmp_path / run_folder / "checkpoints/best_model") for run_folder in ("direct", "prepared")]
    assert [model.spec.cameras for model in models] == [("wrist",), ("wrist",)]
    run(tmp_path, "sh", train, "--data", str(raw), "data.cameras=[wrist,front]", "runner.logger.log_path=both", *SMALL)
    assert Artifact.load(tmp_path / "both/checkpoints/best_model").spec.cameras == ("wrist", "front")
