"""Recording anybody's Gymnasium environment."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from referee.cli import main
from referee.datasets.source import open_source
from referee.episodes import EpisodeStore
from referee.episodes.episode import EpisodeError, Meta
from referee.episodes.gym_recorder import GymRecorder
from referee.errors import RefereeError

sys.path.insert(0, str(Path(__file__).parents[1] / "envs"))
import own_worlds


class _Plain(gym.Env[Any, Any]):
    """Counts up; a success from 3 on, over after 5."""

    observation_space = gym.spaces.Box(0, 10, (1,))
    action_space = gym.spaces.Box(-1, 1, (2,))

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.count += 1
        info = {"success": self.count >= 3}
        return np.full(1, self.count, np.float32), 1.0, False, self.count == 5, info

    def render(self) -> np.ndarray:
        return np.full((4, 4, 3), self.count, np.uint8)


def test_a_plain_gymnasium_env(tmp_path: Path) -> None:
    class Told(_Plain):
        def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
            return super().reset(**kwargs)[0], {"success": False}

    env = GymRecorder(Told(), lambda: EpisodeStore(tmp_path), images="render", meta=Meta(task="count"))
    for _ in range(2):
        env.reset()
        env.step(np.zeros(2))
        env.reset()  # abandoned: not kept
        while not env.step(np.zeros(2))[3]:
            pass
    env.close()
    kept = list(EpisodeStore(tmp_path))
    assert [episode.meta.episode for episode in kept] == [0, 1]
    for episode in kept:
        np.testing.assert_array_equal(episode.observations["states"][:, 0], range(6))
        np.testing.assert_array_equal(episode.observations["main_images"][:, 0, 0, 0], range(6))
        np.testing.assert_array_equal(episode.success, [0, 0, 0, 1, 1, 1])


def play(env: gym.Env[Any, Any], episodes: int = 2) -> None:
    for number in range(episodes):
        env.reset(seed=number)
        done = False
        while not done:
            *_, terminated, truncated, _ = env.step(env.action_space.sample())
            done = terminated or truncated
    env.close()


def test_only_step_tells_success_as_in_fetch(tmp_path: Path) -> None:
    """`reset` gives an empty info there: the state after it is no success, and nothing crashes."""
    env = gym.make("PointReach-v0", render_mode="rgb_array", radius=10.0)
    play(GymRecorder(env, tmp_path, image_size=32))
    for episode in EpisodeStore(tmp_path):
        assert episode.success is not None
        assert episode.success.tolist() == [False] + [True] * 20
        assert episode.observations["states"].shape == (21, 7)
        assert episode.observations["main_images"].shape == (21, 32, 32, 3)
        assert episode.meta.cameras == ("render",) and episode.meta.task == "PointReach-v0" and episode.meta.fps == 10


def test_named_cameras_keep_their_names(tmp_path: Path) -> None:
    play(GymRecorder(gym.make("PointCameras-v0"), tmp_path, image_size=24))
    for episode in EpisodeStore(tmp_path):
        assert episode.meta.cameras == ("top", "wrist")
        main, extra = episode.observations["main_images"], episode.observations["extra_view_images"]
        assert extra.shape == (21, 1, 24, 24, 3)
        np.testing.assert_allclose(main.astype(int) + extra[:, 0], 255, atol=1)


def test_pictures_with_alpha_and_grey_ones_are_cameras(tmp_path: Path) -> None:
    """They are pictures, not 11,522 states: alpha is dropped, grey is drawn in three equal colours."""
    play(GymRecorder(gym.make("PointColours-v0"), tmp_path), 1)
    episode = next(iter(EpisodeStore(tmp_path)))
    assert episode.meta.cameras == ("alpha", "grey") and episode.observations["states"].shape == (21, 2)
    colours, grey = episode.view("alpha"), episode.view("grey")
    assert colours.shape == grey.shape == (21, 48, 48, 3)
    np.testing.assert_array_equal(grey, np.repeat(colours[..., 1:2], 3, axis=-1))


def test_what_looks_like_pictures_of_another_kind_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        play(GymRecorder(gym.make("PointColours-v0", stack=True), tmp_path), 1)
    assert "stack is uint8[4, 48, 48], so it is no picture" in caplog.text and "9,216 state entries" in caplog.text
    assert next(iter(EpisodeStore(tmp_path))).observations["states"].shape == (21, 2 + 9216)


def test_named_cameras_are_exported_to_lerobot_under_their_names(tmp_path: Path) -> None:
    play(GymRecorder(gym.make("PointCameras-v0"), tmp_path / "store", image_size=24))
    assert main(["episodes", "convert", str(tmp_path / "store"), str(tmp_path / "out"), "--format", "lerobot"]) == 0
    features = json.loads((tmp_path / "out/meta/info.json").read_text())["features"]
    cameras = {name: feature["shape"] for name, feature in features.items() if "images" in name}
    assert cameras == {"observation.images.top": [24, 24, 3], "observation.images.wrist": [24, 24, 3]}
    source, exported = EpisodeStore(tmp_path / "store"), list(open_source(tmp_path / "out"))
    for before, after in zip(source, exported, strict=True):
        assert after.meta.cameras == ("top", "wrist")
        np.testing.assert_array_equal(after.view("wrist"), before.view("wrist"))


def test_success_by_key_and_by_function(tmp_path: Path) -> None:
    def near(info: Any) -> bool:
        return bool(info["is_success"] > 2)

    env = gym.make("PointReach-v0", render_mode="rgb_array", radius=10.0)
    play(GymRecorder(env, tmp_path / "never", success=near), 1)
    assert next(iter(EpisodeStore(tmp_path / "never"))).success_once is False
    env = gym.make("PointReach-v0", render_mode="rgb_array")
    with pytest.raises(RefereeError, match=r"info of step\(\) has no 'solved' .* only is_success"):
        play(GymRecorder(env, tmp_path / "wrong", success="solved"), 1)


def test_images_by_a_function_of_the_environment(tmp_path: Path) -> None:
    env = gym.make("PointReach-v0", render_mode="rgb_array")
    play(GymRecorder(env, tmp_path, images=lambda env: {"left": env.render()[:, :48], "right": env.render()[:, 48:]}))
    assert next(iter(EpisodeStore(tmp_path))).meta.cameras == ("left", "right")


def test_no_picture_is_refused_at_the_first_reset(tmp_path: Path) -> None:
    env = GymRecorder(gym.make("PointReach-v0"), tmp_path)
    with pytest.raises(EpisodeError, match=r"gives no picture: make it with render_mode='rgb_array'"):
        env.reset(seed=0)
    play(GymRecorder(gym.make("PointReach-v0"), tmp_path, images="none"), 1)
    assert set(next(iter(EpisodeStore(tmp_path))).observations) == {"states"}


def test_what_is_odd_is_told_at_once_and_counted_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    env = gym.make("PointReach-v0", render_mode="rgb_array")
    with caplog.at_level(logging.WARNING):
        play(GymRecorder(env, tmp_path, images=lambda env: np.zeros((300, 300, 3), np.uint8)), 3)
    told = [line for line in caplog.messages if "pictures" in line]
    assert len(told) == 3
    assert "are 300×300" in told[0] and "image_size=96" in told[0]
    assert "pictures of main_images are black in episode number 0" in told[1]
    assert "pictures of main_images are black in 3 of 3 episodes" in told[2]


FORGETFUL = """
import sys
import gymnasium as gym
import own_worlds
from referee.episodes.gym_recorder import GymRecorder

env = GymRecorder(gym.make("PointReach-v0", render_mode="rgb_array"), sys.argv[1], image_size=16)
for seed in range(3):
    env.reset(seed=seed)
    while not env.step(env.action_space.sample())[3]:
        pass
"""


def test_a_script_that_forgets_to_close_loses_no_episode(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(own_worlds.__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", FORGETFUL, str(tmp_path / "out")], env={**os.environ, "PYTHONPATH": path}, check=True
    )
    assert done.returncode == 0 and len(EpisodeStore(tmp_path / "out", create=False)) == 3


def test_pictures_of_different_size_need_a_size(tmp_path: Path) -> None:
    env = gym.make("PointReach-v0", render_mode="rgb_array")
    images = lambda env: {"wide": env.render(), "square": env.render()[:, :48]}  # noqa: E731
    with pytest.raises(EpisodeError, match=r"different size \(wide 96×48, square 48×48\): give image_size="):
        GymRecorder(env, tmp_path, images=images).reset()
