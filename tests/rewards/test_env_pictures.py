"""Pictures of an environment of another size than a model's: the wrapper scores what a recorder would have recorded."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from referee.episodes import Episode, EpisodeStore
from referee.episodes.gym_recorder import GymRecorder
from referee.models import Artifact, ModelSpec, build
from referee.rewards.env_pictures import fitted
from referee.rewards.wrapper import RewardModelWrapper

sys.path.insert(0, str(Path(__file__).parents[1] / "envs"))
import own_worlds  # noqa: F401 - registers its environments

PIXELS = 20


def make_artifact(*cameras: str, size: int = PIXELS, provenance: dict[str, Any] | None = None, **spec: Any) -> Artifact:
    torch.manual_seed(3)
    model = build(ModelSpec(arch="resnet10", width=8, hidden_dim=8, image_size=size, cameras=cameras, **spec)).eval()
    return Artifact(model, provenance=provenance or {})


def recorded(folder: Path, make: Callable[[], gym.Env[Any, Any]], image_size: int | None, **options: Any) -> Episode:
    env = GymRecorder(make(), folder, image_size=image_size, **options)
    play(env)
    env.close()
    return next(iter(EpisodeStore(folder)))


def draw(random: np.random.Generator) -> np.ndarray:
    """An action of the point."""
    return random.uniform([-0.5, -0.5, 0], 0.5).astype(np.float32)


def play(env: gym.Env[Any, Any]) -> list[dict[str, Any]]:
    """The infos of one episode, the same actions each time."""
    random, infos, done = np.random.default_rng(1), [], False
    env.reset(seed=7)
    while not done:
        *_, terminated, truncated, info = env.step(draw(random))
        infos.append(info)
        done = terminated or truncated
    return infos


def online(env: gym.Env[Any, Any], artifact: Artifact, **options: Any) -> list[float]:
    infos = play(RewardModelWrapper(env, artifact, mode="per_step", **options))
    return [info["referee/probability"] for info in infos]


def rendered() -> gym.Env[Any, Any]:
    return gym.make("PointReach-v0", render_mode="rgb_array")


def with_cameras() -> gym.Env[Any, Any]:
    return gym.make("PointCameras-v0")


def with_colours() -> gym.Env[Any, Any]:
    return gym.make("PointColours-v0")


def two_views(env: gym.Env[Any, Any]) -> dict[str, np.ndarray]:
    return {"left": env.render()[:, :48], "whole": env.render()}


@pytest.mark.parametrize(
    ("make", "cameras", "images"),
    [
        (rendered, ("render",), None),
        (with_cameras, ("top", "wrist"), None),
        (with_cameras, ("wrist",), None),
        (with_colours, ("grey", "alpha"), None),
        (rendered, ("whole", "left"), two_views),
    ],
    ids=["render", "cameras of the observation", "one of them, channels first", "grey, and with alpha", "a function"],
)
def test_a_recorded_frame_and_the_same_frame_online_have_the_same_score(
    tmp_path: Path, make: Callable[[], gym.Env[Any, Any]], cameras: tuple[str, ...], images: Any
) -> None:
    episode = recorded(tmp_path, make, PIXELS, images=images)
    artifact = make_artifact(*cameras)
    views = np.stack([episode.view(camera) for camera in cameras], 1)
    assert views.shape[2:4] == (PIXELS, PIXELS)
    expected = artifact.judge(views if len(cameras) > 1 else views[:, 0]).probability[1:]
    assert np.ptp(expected) > 1e-4
    np.testing.assert_allclose(online(make(), artifact, images=images), expected, rtol=0, atol=1e-6)


def test_where_the_model_scales_or_crops_pictures_have_the_size_of_its_training_first(tmp_path: Path) -> None:
    episode = recorded(tmp_path, rendered, 32)
    spec: dict[str, Any] = {"resize": "bilinear", "crop": {"render": (4, 2, 24, 28)}}
    artifact = make_artifact("render", provenance={"picture_size": [32, 32]}, **spec)
    expected = artifact.judge(episode.view("render")).probability[1:]
    np.testing.assert_allclose(online(rendered(), artifact), expected, rtol=0, atol=1e-6)
    unknown = make_artifact("render", **spec)
    assert unknown.picture_size is None
    assert np.abs(np.array(online(rendered(), unknown)) - expected).max() > 1e-5


def test_a_vector_environment_scores_the_same(tmp_path: Path) -> None:
    artifact = make_artifact("top", "wrist")
    alone = online(with_cameras(), artifact)
    env = RewardModelWrapper(gym.vector.SyncVectorEnv([with_cameras] * 2), artifact, mode="per_step")
    random, found = np.random.default_rng(1), []
    env.reset(seed=[7, 8])
    for _ in range(5):
        action = draw(random)
        *_, info = env.step(np.stack([action, action]))
        found.append(info["referee/probability"][0])
    np.testing.assert_allclose(found, alone[:5], rtol=0, atol=1e-6)


@pytest.mark.alone
def test_scaling_is_cheap_and_touches_nothing_that_fits() -> None:
    large = np.random.default_rng(0).integers(0, 256, (1, 480, 480, 3), dtype=np.uint8)
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        assert fitted(large, (64, 64)).shape == (1, 64, 64, 3)
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.02
    assert fitted(large, (480, 480)) is large and fitted(large, None) is large
    two = fitted(np.repeat(large[:, None], 2, 1), (16, 24))
    assert two.shape == (1, 2, 16, 24, 3)
    np.testing.assert_array_equal(two[:, 0], two[:, 1])
