"""Two named cameras of a Dict observation: recorded, listed, trained on, audited, scored online, in LeRobot."""

import json
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from referee.cli import main
from referee.episodes import EpisodeStore
from referee.episodes.gym_recorder import GymRecorder
from referee.models import Artifact
from referee.rewards.wrapper import RewardModelWrapper

sys.path.insert(0, str(Path(__file__).parents[1] / "envs"))
import own_worlds  # noqa: F401 - registers its environments

CAMERAS = ("top", "wrist")
TINY = ["runner.max_epochs=2", "actor.model.arch=resnet10", "actor.model.width=8", "actor.model.hidden_dim=8"]


def record(folder: Path, *, episodes: int, seed: int) -> list[np.ndarray]:
    """Every other episode goes to its goal; returns the actions of the first."""
    env = GymRecorder(gym.make("PointCameras-v0", radius=0.3), folder, image_size=24)
    random, first = np.random.default_rng(seed), []
    for number in range(episodes):
        observation, _ = env.reset(seed=seed + number)
        done = False
        while not done:
            to_goal = observation["desired_goal"] - observation["achieved_goal"]
            move = to_goal if number % 2 else random.uniform(-0.5, 0.5, 2)
            action = np.array([*np.clip(move, -0.5, 0.5), 0], np.float32)
            observation, _, terminated, truncated, _ = env.step(action)
            done = terminated or truncated
            first += [action] * (number == 0)
    env.close()
    return first


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recorded episodes, others to audit on, and a model that looks at both cameras."""
    folder = tmp_path_factory.mktemp("world")
    record(folder / "episodes", episodes=16, seed=0)
    record(folder / "fresh", episodes=8, seed=100)
    assert main(["train", str(folder / "episodes"), "--out", str(folder / "reward"), *TINY]) == 0
    return folder


def test_they_are_listed_and_viewed(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["episodes", "ls", str(world / "episodes")]) == 0
    said = capsys.readouterr().out
    assert "top, wrist" in said and "warning" not in said
    assert main(["episodes", "view", str(world / "episodes"), "--out", str(world / "strip.png")]) == 0
    assert (world / "strip.png").stat().st_size > 1000


def test_they_are_trained_on_and_audited(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = world / "reward" / "checkpoints" / "best_model"
    artifact = Artifact.load(model)
    assert artifact.spec.cameras == CAMERAS and artifact.picture_size == (24, 24)
    assert main(["audit", str(model), str(world / "fresh")]) == 0
    metrics = json.loads((model / "report" / "metrics.json").read_text())
    assert set(metrics["without_camera"]) == set(CAMERAS) and metrics["counts"]["episodes"] == 8
    assert "AUROC without wrist" in capsys.readouterr().out
    assert main(["audit", str(model), str(world / "fresh")]) == 0
    assert "an audit of 8 episodes in" in capsys.readouterr().out.replace("\n", " ")


def test_the_wrapper_scores_them_as_they_were_recorded(world: Path) -> None:
    artifact = Artifact.load(world / "reward" / "checkpoints" / "best_model")
    actions = record(world / "again", episodes=1, seed=0)
    episode = next(iter(EpisodeStore(world / "again")))
    views = np.stack([episode.view(camera) for camera in CAMERAS], 1)
    expected = artifact.judge(views).probability
    assert expected is not None
    env = RewardModelWrapper(gym.make("PointCameras-v0", radius=0.3), artifact, mode="per_step")
    env.reset(seed=0)
    found = [env.step(action)[4]["referee/probability"] for action in actions]
    np.testing.assert_allclose(found, expected[1:], rtol=0, atol=1e-6)


def test_they_keep_their_names_in_lerobot_and_back(world: Path) -> None:
    pytest.importorskip("pyarrow")
    there, back = world / "lerobot", world / "back"
    assert main(["episodes", "convert", str(world / "episodes"), str(there), "--format", "lerobot"]) == 0
    features = json.loads((there / "meta" / "info.json").read_text())["features"]
    for camera in CAMERAS:
        assert features[f"observation.images.{camera}"]["shape"] == [24, 24, 3]
    assert main(["episodes", "convert", str(there), str(back)]) == 0
    first, second = (list(EpisodeStore(each)) for each in (world / "episodes", back))
    assert len(first) == len(second) == 16
    for one, other in zip(first, second, strict=True):
        assert other.meta.cameras == CAMERAS
        for camera in CAMERAS:
            np.testing.assert_array_equal(one.view(camera), other.view(camera))
        np.testing.assert_array_equal(one.success, other.success)
