"""Somebody's Gymnasium environment through `referee run`: record, train a reward model, train a policy on it."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from referee.cli import main
from referee.episodes import EpisodeStore
from referee.models import Artifact

WORLDS = str(Path(__file__).parents[1] / "envs")
POINT = "own_worlds:PointReach-v0"
POLICY = """
import numpy as np

def towards(observation):
    states = observation["states"]  # observation (x, y, third), achieved goal, desired goal
    return np.concatenate([np.clip((states[:, 5:7] - states[:, :2]) / 0.25, -1, 1), np.zeros((len(states), 1))], axis=1)
"""


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(WORLDS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [WORLDS, os.environ.get("PYTHONPATH", "")])))
    monkeypatch.chdir(tmp_path)
    Path("my_policy.py").write_text(POLICY)


def record(out: str, *, episodes: int, noise: float, seed: int, id: str = POINT, **more: str) -> EpisodeStore:
    extra = [f"{name}={value}" for name, value in more.items()]
    code = main(["run", "gym_collect", f"env.eval.id={id}", "runner.policy=my_policy:towards", "runner.film=false",
                 f"runner.num_episodes={episodes}", f"runner.expert_noise={noise}", f"runner.seed={seed}",
                 "env.eval.num_envs=8", "env.eval.num_processes=1", "env.eval.image_size=32",
                 f"env.eval.data_collection.save_dir={out}", f"runner.logger.log_path=log_{out}_{seed}",
                 *extra])  # fmt: skip
    assert code == 0
    return EpisodeStore(Path(out), create=False)


def test_as_many_episodes_are_recorded_as_were_asked_for() -> None:
    store = record("twenty", episodes=20, noise=0.5, seed=0)
    assert len(store) == 20
    assert json.loads(Path("log_twenty_0/result.json").read_text())["episodes"] == 20
    counts = np.bincount([episode.meta.env for episode in store], minlength=8)
    assert counts.tolist() == [3, 3, 3, 3, 2, 2, 2, 2]


def test_named_cameras_are_recorded_listed_and_trained_on(capsys: pytest.CaptureFixture[str]) -> None:
    cameras = "own_worlds:PointCameras-v0"
    record("cameras", episodes=16, noise=0.5, seed=0, id=cameras)
    record("cameras", episodes=16, noise=3.0, seed=1, id=cameras)
    assert main(["episodes", "ls", "cameras"]) == 0
    assert "top, wrist" in capsys.readouterr().out
    assert main(["train", "cameras", "--out", "reward", "data.cameras=[wrist]", "runner.max_epochs=1"]) == 0
    assert Artifact.open("reward/checkpoints/best_model").spec.cameras == ("wrist",)


@pytest.mark.slow
def test_from_recorded_episodes_to_a_policy_that_the_learned_reward_taught(capsys: pytest.CaptureFixture[str]) -> None:
    record("episodes", episodes=60, noise=0.5, seed=0)
    record("episodes", episodes=60, noise=4.0, seed=1)
    record("fresh", episodes=40, noise=2.0, seed=2)
    assert main(["train", "episodes", "--out", "reward"]) == 0
    assert main(["audit", "reward/checkpoints/best_model", "fresh"]) == 0
    assert main(["run", "gym_ppo_mlp_resnet_reward", f"env.train.id={POINT}", "env.train.image_size=32",
                 "reward.model.model_path=reward/checkpoints/best_model", "reward.reward_mode=per_step",
                 "env.train.num_processes=1", "runner.max_steps=40000", "runner.eval_episodes=64", "runner.film=false",
                 "runner.logger.log_path=policy"]) == 0  # fmt: skip
    lines = [json.loads(line) for line in Path("policy/metrics.jsonl").read_text().splitlines()]
    true = [line["eval/success_at_end"] for line in lines if "eval/success_at_end" in line]
    assert true[-1] > 0.8 > true[0] + 0.3
