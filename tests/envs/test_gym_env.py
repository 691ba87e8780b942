"""Any Gymnasium id under the contract: the conformance suite, and what is particular to other people's worlds."""

import os
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from referee.config.gym import ArgumentConfig, CustomEnvConfig, GymEnvConfig
from referee.envs import RefereeVectorEnv, make_vec
from referee.envs.conformance import Conformance
from referee.envs.gym.env import find_spec, processes
from referee.envs.gym.share import flat
from referee.errors import RefereeError
from referee.pictures import scaled

HERE = str(Path(__file__).parent)
POINT = "own_worlds:PointReach-v0"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)
    path = [HERE, os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))  # of the processes


def point(num_envs: int = 3, obs_mode: str = "state", *, id: str = POINT, **options: Any) -> RefereeVectorEnv:
    options = {"num_processes": 1, "max_episode_steps": 5, "image_size": 32, **options}
    return make_vec(GymEnvConfig(id=id, num_envs=num_envs, obs_mode=obs_mode, **options))


class TestConformanceInOneProcess(Conformance):
    def make(self, num_envs: int = 3, obs_mode: str = "state", **options: Any) -> RefereeVectorEnv:
        return point(num_envs, obs_mode, **options)


class TestConformanceOfNamedCameras(Conformance):
    def make(self, num_envs: int = 3, obs_mode: str = "state", **options: Any) -> RefereeVectorEnv:
        return point(num_envs, obs_mode, id="own_worlds:PointCameras-v0", **options)


class TestConformanceOfDrawnImages(Conformance):
    def make(self, num_envs: int = 3, obs_mode: str = "state", **options: Any) -> RefereeVectorEnv:
        return point(num_envs, obs_mode, images="own_worlds:draw", **options)


@pytest.mark.slow
class TestConformanceInProcesses(Conformance):
    def make(self, num_envs: int = 3, obs_mode: str = "state", **options: Any) -> RefereeVectorEnv:
        return point(num_envs, obs_mode, num_processes=num_envs, **options)


def test_a_goal_observation_is_flattened_in_the_stated_order() -> None:
    env = point(1)
    states = env.reset(seed=3)[0]["states"][0]
    assert states.shape == (7,)
    np.testing.assert_array_equal(states[:2], states[3:5])  # observation begins with the achieved goal here
    assert states[2] == 0.0
    env.step(np.zeros((1, 3), np.float32))
    assert env.true_states()[0, 2] == 2.0  # type: ignore[attr-defined]  # the middle of [0, 4]


@pytest.mark.parametrize("processes", [1, 2])
def test_pictures_with_alpha_and_grey_ones_are_cameras(processes: int) -> None:
    env = point(2, "state+rgb", id="own_worlds:PointColours-v0", num_processes=processes)
    assert env.cameras == ("alpha", "grey")
    observation, _ = env.reset(seed=3)
    assert observation["states"].shape == (2, 2)
    colours, grey = observation["main_images"], observation["extra_view_images"][:, 0]
    np.testing.assert_array_equal(grey, np.repeat(colours[..., 1:2], 3, axis=-1))
    env.close()


def test_what_looks_like_pictures_of_another_kind_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    point(1, id="own_worlds:PointColours-v0", kwargs={"stack": ArgumentConfig(value=True)}).close()
    assert "PointColours-v0: stack is uint8[4, 48, 48], so it is no picture" in caplog.text


def test_actions_are_scaled_to_the_bounds() -> None:
    env = point(1)
    before = env.reset(seed=3)[0]["states"][0]
    after = env.step(np.array([[1.0, -1.0, 1.0]], np.float32))[0]["states"][0]
    moved = np.clip(before[:2] + np.array([0.25, -0.25]), -1, 1)
    np.testing.assert_allclose(after[:2], moved, atol=1e-6)
    assert after[2] == 4.0


def test_success_is_of_the_step_and_the_reset_state_is_none() -> None:
    env = point(1, max_episode_steps=50)
    observation, info = env.reset(seed=0)
    assert info["success"].tolist() == [False]
    for _ in range(30):
        state = observation["states"][0]
        move = np.clip((state[5:7] - state[:2]) / 0.25, -1, 1)
        observation, _, _, _, info = env.step(np.array([[*move, 0]], np.float32))
    distance = np.linalg.norm(observation["states"][0][:2] - observation["states"][0][5:7])
    assert distance < 0.15 and info["success"].tolist() == [True]


@pytest.mark.parametrize(
    ("key", "fix"), [("solved", "info has no 'solved'"), ("own_worlds:nothing", "module own_worlds has no nothing")]
)
def test_a_success_key_that_is_not_there_is_refused(key: str, fix: str) -> None:
    def play() -> None:
        env = point(1, success_key=key)
        env.reset(seed=0)
        env.step(np.zeros((1, 3), np.float32))

    with pytest.raises(RefereeError, match=fix):
        play()


def test_sparse_reward_is_success_alone() -> None:
    env = point(1, reward_mode="sparse", kwargs={"radius": ArgumentConfig(value=10.0)})
    env.reset(seed=0)
    assert env.step(np.zeros((1, 3), np.float32))[1].tolist() == [1.0]


def test_named_cameras_are_cameras() -> None:
    env = point(2, "state+rgb", id="own_worlds:PointCameras-v0")
    assert env.cameras == ("top", "wrist")
    observation, _ = env.reset(seed=0)
    np.testing.assert_allclose(
        observation["main_images"].astype(int) + observation["extra_view_images"][:, 0], 255, atol=1
    )
    assert observation["states"].shape == (2, 7)


def test_a_function_draws_its_cameras_when_they_are_asked_for() -> None:
    env = point(2, images="own_worlds:draw", cameras=("negative", "plain"))
    assert env.cameras == ("negative", "plain") and env.reset(seed=1)[0].keys() == {"states"}
    worlds = [slot.env.unwrapped for slot in env._vec.envs[0]._slots]  # type: ignore[attr-defined]
    drawn = [world.drawn if hasattr(world, "drawn") else 0 for world in worlds]
    env.step(np.zeros((2, 3), np.float32))
    assert [getattr(world, "drawn", 0) for world in worlds] == drawn  # a step draws nothing
    pictures = env.render_cameras(np.array([1]))
    assert getattr(worlds[1], "drawn", 0) == drawn[1] + 1 and getattr(worlds[0], "drawn", 0) == drawn[0]
    shown = scaled(worlds[1].render()[:, ::2], 32)
    np.testing.assert_array_equal(pictures["extra_view_images"][0, 0], shown)
    np.testing.assert_allclose(pictures["main_images"][0].astype(int), 255 - shown.astype(int), atol=1)
    with pytest.raises(RefereeError, match=r"images draws no camera 'wrist'.* plain, negative"):
        point(1, images="own_worlds:draw", cameras=("wrist",))


def test_cameras_in_a_dict_within_the_observation_keep_their_names() -> None:
    env = point(1, id="own_worlds:PointPixels-v0")
    states = env.reset(seed=3)[0]["states"]
    assert env.cameras == ("front", "wrist") and states.shape == (1, 2)
    pictures = env.render_cameras()
    np.testing.assert_allclose(
        pictures["main_images"][0] + pictures["extra_view_images"][0, 0].astype(int), 255, atol=1
    )


def test_an_environment_that_cannot_draw_is_known_from_the_start() -> None:
    env = point(1, id="own_worlds:Undrawn-v0")
    assert env.cameras == () and not env.can_film
    with pytest.raises(RefereeError, match=r"draws no pictures \(pygame is not installed\): env\.\*\.cameras"):
        point(1, id="own_worlds:Undrawn-v0", cameras=("render",))


def test_names_that_stand_twice_are_told_apart() -> None:
    nested = {"left": {"image": 1, "depth": 2}, "right": {"image": 3}, "state": 4}
    assert flat(nested) == {"left.image": 1, "depth": 2, "right.image": 3, "state": 4}


def test_how_to_draw_is_decided_before_a_suite_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MUJOCO_GL", "PYOPENGL_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr("referee.envs.gym.share.find_library", lambda name: name == "EGL")
    lines = ["import os, gymnasium", "SEEN = os.environ.get('MUJOCO_GL')", "from own_worlds import PointReach"]
    lines.append("gymnasium.register('Early-v0', PointReach)")
    (tmp_path / "early_world.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    find_spec("early_world:Early-v0")
    assert sys.modules["early_world"].SEEN == "egl"


def test_the_last_picture_is_the_last_state_even_if_it_is_asked_for_late() -> None:
    """The first request lives the episode again; later ones find the picture kept. Both are what was there."""
    lazy, eager = point(2), point(2, keep_final_images=True)
    for env in (lazy, eager):
        env.reset(seed=7)
    actions = np.random.default_rng(0).uniform(-1, 1, (15, 2, 3)).astype(np.float32)
    for step, action in enumerate(actions, 1):
        mine, other = lazy.step(action), eager.step(action)
        np.testing.assert_array_equal(mine[0]["states"], other[0]["states"])
        if step in (5, 15):
            got, want = lazy.render_cameras(final=True), eager.render_cameras(final=True)
            np.testing.assert_array_equal(got["main_images"], want["main_images"])
            assert not np.array_equal(got["main_images"], lazy.render_cameras()["main_images"])


def test_an_environment_that_forgets_its_seed_says_so() -> None:
    env = point(1, id="own_worlds:Restless-v0")
    env.reset(seed=0)
    for _ in range(5):
        env.step(np.full((1, 3), 0.3, np.float32))
    with pytest.raises(RefereeError, match=r"does not repeat an episode .* set env.*keep_final_images=true"):
        env.render_cameras(final=True)


@pytest.mark.parametrize(
    ("id", "options", "line"),
    [
        (None, {}, r"env\.\*\.id is not given"),
        ("Nowhere-v3", {}, r"env\.\*\.id=Nowhere-v3: .* package:Name-v0"),
        ("CartPole-v1", {}, r"CartPole-v1 has actions Discrete\(2\)"),
        (POINT, {"cameras": ("left",)}, r"has no camera 'left': .* render"),
        (POINT, {"cameras": (), "obs_mode": "rgb"}, "gives no pictures"),
        (POINT, {"proprio_size": 9}, "has 7 state entries"),
        (POINT, {"kwargs": {"colour": ArgumentConfig(value=1)}}, "cannot be made: .*colour"),
    ],
)
def test_what_cannot_be_made_is_one_line(id: str | None, options: dict[str, Any], line: str) -> None:
    with pytest.raises(RefereeError, match=line) as raised:
        make_vec(GymEnvConfig(**{"id": id, "num_processes": 1, "num_envs": 1, **options}))
    assert "\n" not in str(raised.value)


def test_processes_share_the_environments_equally() -> None:
    assert [processes(n, 4) for n in (1, 2, 3, 8, 9, 10)] == [1, 2, 3, 4, 3, 2]


def _make_own(config: CustomEnvConfig, **kwargs: Any) -> RefereeVectorEnv:
    steps = config.max_episode_steps or 4
    return point(config.num_envs, config.obs_mode, max_episode_steps=steps + int(kwargs.get("more", 0)))


def _make_wrong(config: CustomEnvConfig) -> object:
    return object()


def test_a_vector_environment_of_another_package_is_made_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    config = CustomEnvConfig(maker="test_gym_env:_make_own", num_envs=2, kwargs={"more": ArgumentConfig(value=3)})
    assert make_vec(config).max_episode_steps == 7
    entry = EntryPoint("own", "test_gym_env:_make_own", "referee.envs")
    monkeypatch.setattr("referee.envs.make.entry_points", lambda group: [entry] if group == "referee.envs" else [])
    assert make_vec(replace(config, maker="own", kwargs=None)).max_episode_steps == 4
    for maker, line in (
        (None, r"maker is not given"),
        ("mine", r"env\.\*\.maker=mine is no module:function, nor registered \(referee\.envs: own\)"),
        ("test_gym_env:_make_wrong", "made object, which is no referee.envs.RefereeVectorEnv"),
    ):
        with pytest.raises(RefereeError, match=line):
            make_vec(replace(config, maker=maker, kwargs=None))
