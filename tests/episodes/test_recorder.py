"""The recorder: what it writes is what happened, state by state, under autoreset and for every choice."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from episodes.examples import assert_same, make_episode
from referee.config import PandaEnvConfig
from referee.envs import RefereeVectorEnv, make_vec
from referee.envs.conformance import Conformance
from referee.envs.policies import make_policy
from referee.episodes import Episode, EpisodeError, EpisodeStore, Meta
from referee.episodes.recorder import Recorder, Wanted
from referee.episodes.writer import BackgroundWriter
from referee.workers.env import EnvWorker


def record(tmp_path: Path, steps: int, *, policy: str = "expert", wanted: Wanted | None = None, cameras: Any = None,
           **settings: Any) -> tuple[EpisodeStore, list[dict[str, Any]]]:  # fmt: skip
    """Record Reach, and keep every state that a user of the env saw, in a plain list per finished episode."""
    config = PandaEnvConfig(**{"task": "Reach", "num_envs": 3, "max_episode_steps": 12, "cameras": ("front", "side"),
                               **settings})  # fmt: skip
    env = make_vec(config)
    recorder = Recorder(env, lambda: EpisodeStore(tmp_path), wanted=wanted, cameras=cameras, meta=Meta(task="Reach"))
    act = make_policy(env, policy, seed=1)
    observation, info = recorder.reset(seed=5)
    finished: list[dict[str, Any]] = []
    running = [
        {"env": i, "states": [observation["states"][i]], "success": [info["success"][i]], "actions": [], "rewards": [],
         "images": [env.render_cameras([i])["main_images"][0]]}
        for i in range(3)
    ]  # fmt: skip
    for _ in range(steps):
        actions = act()
        observation, rewards, terminated, truncated, info = recorder.step(actions)
        for i in range(3):
            done = terminated[i] or truncated[i]
            last = info["final_obs"][i] if done else {name: value[i] for name, value in observation.items()}
            truth = info["final_info"] if done else info
            one = running[i]
            one["states"].append(last["states"])
            one["success"].append(truth["success"][i])
            one["actions"].append(actions[i])
            one["rewards"].append(rewards[i])
            one["images"].append(env.render_cameras([i], final=bool(done))["main_images"][0])
            if done:
                finished.append({**one, "terminated": terminated[i]})
                running[i] = {"env": i, "states": [observation["states"][i]], "success": [info["success"][i]],
                              "actions": [], "rewards": [],
                              "images": [env.render_cameras([i])["main_images"][0]]}  # fmt: skip
    recorder.close()
    return EpisodeStore(tmp_path), finished


@pytest.mark.parametrize("settings", [{}, {"terminate_on_success": True}, {"obs_mode": "state+rgb"}])
def test_what_is_written_is_what_happened(tmp_path: Path, settings: dict[str, Any]) -> None:
    store, finished = record(tmp_path, 40, **settings)
    assert len(store) == len(finished) >= 9
    for kept, seen in zip(store, finished, strict=True):
        assert (kept.meta.env, kept.meta.task, kept.meta.cameras) == (seen["env"], "Reach", ("front", "side"))
        np.testing.assert_array_equal(kept.observations["states"], np.stack(seen["states"]))
        np.testing.assert_array_equal(kept.observations["main_images"], np.stack(seen["images"]))
        np.testing.assert_array_equal(kept.success, seen["success"])
        np.testing.assert_array_equal(kept.actions, np.stack(seen["actions"]))
        np.testing.assert_allclose(kept.rewards, seen["rewards"], rtol=1e-6)
        assert kept.terminated[-1] == seen["terminated"] and kept.terminated[-1] != kept.truncated[-1]
        assert not kept.terminated[:-1].any() and not kept.truncated[:-1].any()
        assert kept.observations["extra_view_images"].shape[1] == 1
    assert any(episode.success_once for episode in store)


def test_progress_is_the_dense_value_and_one_at_success(tmp_path: Path) -> None:
    store, _ = record(tmp_path, 24)
    for episode in store:
        progress = episode.signals["progress"]
        np.testing.assert_array_equal(progress == 1.0, episode.success)
        np.testing.assert_allclose(
            episode.rewards,
            np.where(episode.success[1:], 1.0, 0.5 * progress[1:]),
            rtol=1e-5,  # type: ignore[index]
        )


def test_episodes_that_a_verdict_ends_are_kept(tmp_path: Path) -> None:
    config = PandaEnvConfig(task="Reach", num_envs=3, max_episode_steps=6)
    recorder = Recorder(make_vec(config), lambda: EpisodeStore(tmp_path), cameras=())
    worker, states = EnvWorker(recorder, seed=0), []
    for step in range(5):
        early = np.array([step == 3, False, step in (1, 4)])
        result = worker.step(np.zeros((3, 4), np.float32), lambda result, early=early: early)  # type: ignore[misc]
        states.append(result[4]["final_obs"][2]["states"] if early[2] else result[0]["states"][2])
    recorder.reset(seed=1)  # nobody says that the others have ended
    recorder.close()
    kept = sorted(EpisodeStore(tmp_path), key=lambda episode: (episode.meta.env, episode.meta.episode))
    assert [(each.meta.env, len(each)) for each in kept] == [(0, 4), (2, 2), (2, 3)]
    for each in kept:
        assert each.terminated.tolist() == [False] * (len(each) - 1) + [True] and not each.truncated.any()
    np.testing.assert_array_equal(kept[1].observations["states"][1:], states[:2])
    np.testing.assert_array_equal(kept[2].observations["states"][1:], states[2:])


def test_episodes_know_their_place(tmp_path: Path) -> None:
    store, _ = record(tmp_path, 36)
    assert sorted((episode.meta.env, episode.meta.episode) for episode in store) == [
        (env, count) for env in range(3) for count in range(3)
    ]


@pytest.mark.parametrize(("cameras", "views"), [((), None), (("side",), 0), (("side", "front"), 1)])
def test_only_the_cameras_asked_for_are_drawn(tmp_path: Path, cameras: tuple[str, ...], views: int | None) -> None:
    store, _ = record(tmp_path, 12, cameras=cameras)
    both, _ = record(tmp_path / "both", 12)
    for one, two in zip(store, both, strict=True):
        assert one.meta.cameras == cameras
        if views is None:
            assert set(one.observations) == {"states"}
        else:
            assert one.observations["extra_view_images"].shape[1] == views
            for camera in cameras:
                np.testing.assert_array_equal(one.view(camera), two.view(camera))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Wanted(target_success=0), {False}),
        (Wanted(only_success=True), {True}),
        (Wanted(target_success=2, target_failure=3), {True, False}),
    ],
)
def test_what_is_wanted_is_kept(tmp_path: Path, wanted: Wanted, expected: set[bool]) -> None:
    store, finished = record(tmp_path, 60, wanted=wanted, max_episode_steps=5)
    kept = [episode.success_once for episode in store]
    happened = [bool(np.any(one["success"])) for one in finished]
    assert {True, False} <= set(happened) and set(kept) == expected
    if wanted.target_success == 2:
        assert (kept.count(True), kept.count(False)) == (2, 3) and wanted.satisfied
    elif wanted.only_success:
        assert kept.count(True) == happened.count(True)
    else:
        assert kept.count(False) == happened.count(False)


def test_the_env_inside_does_not_notice(tmp_path: Path) -> None:
    config = PandaEnvConfig(task="PickCube", num_envs=4, max_episode_steps=7)
    plain, recorder = make_vec(config), Recorder(make_vec(config), lambda: EpisodeStore(tmp_path))
    actions = np.random.default_rng(0).uniform(-1, 1, (20, 4, 4)).astype(np.float32)
    first, second = plain.reset(seed=3)[0], recorder.reset(seed=3)[0]
    for action in actions:
        np.testing.assert_array_equal(first["states"], second["states"])
        first, second = plain.step(action)[0], recorder.step(action)[0]
    recorder.close()


def test_after_a_restore_recording_goes_on_with_whole_episodes(tmp_path: Path) -> None:
    env = make_vec(PandaEnvConfig(task="Reach", num_envs=2, max_episode_steps=6))
    recorder = Recorder(env, lambda: EpisodeStore(tmp_path), cameras=())
    recorder.reset(seed=0)
    still = np.zeros((2, 4), np.float32)
    for _ in range(3):
        recorder.step(still)
    recorder.restore_state(recorder.save_state())
    for _ in range(9):
        recorder.step(still)
    recorder.close()
    assert [len(episode) for episode in EpisodeStore(tmp_path)] == [6, 6]


@pytest.mark.parametrize("same_store", [True, False])
def test_numbers_go_on_after_a_kill_and_resume(
    tmp_path: Path, same_store: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def record(root: Path) -> Recorder:
        env = make_vec(PandaEnvConfig(task="Reach", num_envs=2, max_episode_steps=4))
        return Recorder(env, lambda: EpisodeStore(root), cameras=(), wanted=Wanted(target_failure=100))

    still = np.zeros((2, 4), np.float32)
    first = record(tmp_path / "a")
    first.reset(seed=0)
    for _ in range(10):
        first.step(still)
    saved = first.save_state()
    for _ in range(4):  # recorded behind the checkpoint, before the kill
        first.step(still)
    first.flush()
    root = tmp_path / ("a" if same_store else "b")
    second = record(root)
    second.restore_state(saved)
    assert [line for line in caplog.messages if "one in each of 2 environments, are not recorded" in line]
    assert second.wanted.failures == 4
    for _ in range(10):
        second.step(still)
    second.close()
    first.close()
    numbers = sorted((each.meta.env, each.meta.episode) for each in EpisodeStore(root))
    expected = range(5) if same_store else (2, 3)  # 0 to 2 were recorded by the first
    assert numbers == [(env, number) for env in range(2) for number in expected]


def test_a_state_that_was_saved_while_recording_is_restored_without(tmp_path: Path) -> None:
    config = PandaEnvConfig(task="Reach", num_envs=2, max_episode_steps=4)
    recorder = Recorder(make_vec(config), lambda: EpisodeStore(tmp_path), cameras=())
    observation = recorder.reset(seed=0)[0]
    plain = make_vec(config)
    plain.reset(seed=1)
    np.testing.assert_array_equal(plain.restore_state(recorder.save_state())["states"], observation["states"])
    recorder.restore_state(plain.save_state())
    recorder.close()


def test_a_longer_episode_than_thought_of_finds_room(tmp_path: Path) -> None:
    env = make_vec(PandaEnvConfig(task="Reach", num_envs=2, max_episode_steps=25))
    recorder = Recorder(env, lambda: EpisodeStore(tmp_path), cameras=())
    recorder._capacity_steps = 4
    recorder.reset(seed=0)
    for _ in range(25):
        recorder.step(np.full((2, 4), 0.1, np.float32))
    recorder.close()
    assert [len(episode) for episode in EpisodeStore(tmp_path)] == [25, 25]


class _Slow:
    def __init__(self, seconds: float, fail_at: int = 10**9) -> None:
        self.seconds, self.fail_at, self.kept = seconds, fail_at, []  # type: ignore[var-annotated]

    def append(self, episode: Episode) -> None:
        time.sleep(self.seconds)
        if len(self.kept) == self.fail_at:
            raise OSError(28, "No space left on device")
        self.kept.append(episode)


def test_a_slow_disk_makes_the_writer_wait_and_drops_nothing() -> None:
    sink = _Slow(0.02)
    writer = BackgroundWriter(sink, capacity=2)
    episodes = [make_episode(seed=i, pixels=0) for i in range(8)]
    for episode in episodes:
        writer.put(episode)
    assert writer.waited > 0.03
    writer.close()
    assert writer.written == 8
    for a, b in zip(sink.kept, episodes, strict=True):
        assert_same(a, b)


def test_an_error_of_the_disk_reaches_the_one_who_records() -> None:
    writer = BackgroundWriter(_Slow(0.0, fail_at=1), capacity=4)
    for _ in range(2):
        writer.put(make_episode(pixels=0))
    time.sleep(0.1)
    with pytest.raises(EpisodeError, match="recording stopped"):
        writer.put(make_episode(pixels=0))
    with pytest.raises(EpisodeError, match="No space left"):
        writer.close()
    assert writer.written == 1


class TestRecorderKeepsTheContract(Conformance):
    """A recorder is a vector env like any other."""

    def make(self, num_envs: int = 3, obs_mode: str = "state", **options: Any) -> RefereeVectorEnv:
        given = {"max_episode_steps": self.horizon, **options}
        config = PandaEnvConfig(task="Reach", num_envs=num_envs, obs_mode=obs_mode, **given)
        return Recorder(make_vec(config), lambda: _Slow(0.0), cameras=())
