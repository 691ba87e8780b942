"""History buffers and their payment, against slow and obvious references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from referee.errors import RefereeError
from referee.rewards.assign import pay_windows
from referee.rewards.history import History, HistoryBuffer, Windows

buffers = st.builds(
    lambda size, least, interval, done: HistoryBuffer(
        history_size=size, min_history_size=min(size, least), input_interval=interval, input_on_done=done,
        history_keys=("main_images",),
    ),
    st.integers(1, 6), st.integers(1, 6), st.integers(1, 7), st.booleans(),
)  # fmt: skip
worlds = st.tuples(
    st.integers(1, 3),  # environments
    st.lists(st.integers(1, 6), min_size=1, max_size=4),  # steps of the rollouts
    st.integers(0, 2**32 - 1),
)


class Lives:
    """Environments whose frames are numbers that never come twice, and whose episodes end at random."""

    def __init__(self, num_envs: int, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.ends = self.random.choice([0.0, 0.2, 0.6, 1.0])
        self.next = 0
        self.num_envs = num_envs

    def frames(self, count: int) -> dict[str, np.ndarray]:
        found = np.arange(self.next, self.next + count, dtype=np.int64).reshape(count, 1)
        self.next += count
        return {"main_images": found}


class Slow:
    """Each episode as a list of all of its frames; a window is cut out of it when it is due."""

    def __init__(self, named: list[HistoryBuffer], num_envs: int) -> None:
        self.named = named
        self.episodes: list[list[int]] = [[] for _ in range(num_envs)]
        self.found: list[tuple[int, int, int, list[int]]] = []

    def step(self, step: int, states: np.ndarray, ended: np.ndarray, firsts: list[int]) -> None:
        rest = list(firsts)
        for env, episode in enumerate(self.episodes):
            episode.append(int(states[env, 0]))
            for number, buffer in enumerate(self.named):
                steps = len(episode) - 1
                since_first = steps - max(buffer.min_history_size - 1, 1)
                long_enough = len(episode) >= buffer.min_history_size and steps >= 1
                wanted = since_first % buffer.input_interval == 0 or (buffer.input_on_done and ended[env])
                if long_enough and wanted:
                    self.found.append((step, env, number, episode[-buffer.history_size :]))
            if ended[env]:
                episode[:] = [rest.pop(0)]


def told(windows: Windows) -> list[tuple[int, int, int, list[int]]]:
    return [
        (int(windows.steps[i]), int(windows.envs[i]), int(windows.buffers[i]),
         windows.window(i, "").frames["main_images"][:, 0].tolist())
        for i in range(len(windows))
    ]  # fmt: skip


@given(st.lists(buffers, min_size=1, max_size=2), worlds)
@settings(max_examples=200, deadline=None)
def test_windows_are_those_of_the_slow_reference(named: list[HistoryBuffer], world: Any) -> None:
    num_envs, rollouts, seed = world
    lives, slow = Lives(num_envs, seed), Slow(named, num_envs)
    by_name = {str(number): buffer for number, buffer in enumerate(named)}
    steps = max(rollouts)
    history = History(by_name, num_envs, steps)
    assert not history.started and history.save_state() == {}
    firsts = lives.frames(num_envs)
    history.start(firsts)
    for episode, frame in zip(slow.episodes, firsts["main_images"][:, 0], strict=True):
        episode.append(int(frame))
    for rollout, length in enumerate(rollouts):
        if rollout % 2:  # as a resumed run would
            saved = history.save_state()
            history = History(by_name, num_envs, steps)
            history.restore_state(saved)
        history.begin()
        slow.found = []
        for step in range(length):
            states, ended = lives.frames(num_envs), lives.random.random(num_envs) < lives.ends
            after = lives.frames(int(ended.sum()))
            history.add(states, ended, after)
            slow.step(step, states["main_images"], ended, after["main_images"][:, 0].tolist())
        found = history.windows()
        expected = sorted(slow.found, key=lambda each: each[:3])
        assert sorted(told(found), key=lambda each: each[:3]) == expected
        packed = found.packed()
        assert told(packed) == told(found)
        shown = {frame for *_, frames in expected for frame in frames}
        assert sorted(packed.frames["main_images"][:, 0].tolist()) == sorted(shown)


def slow_pay(windows: Windows, rewards: np.ndarray, shape: tuple[int, int], assign: str, otherwise: float) -> Any:
    paid: dict[tuple[int, int], list[float]] = {}
    for number in range(len(windows)):
        end, env = int(windows.steps[number]), int(windows.envs[number])
        steps = [end] if assign == "end" or windows.lengths[number] == 1 else list(
            range(end - int(windows.lengths[number]) + 2, end + 1)
        )  # fmt: skip
        for step in steps:
            if step >= 0:
                paid.setdefault((step, env), []).append(float(rewards[number]))
    expected = np.full(shape, otherwise, np.float32)
    for place, amounts in paid.items():
        expected[place] = sum(amounts) if assign == "sum" else sum(amounts) / len(amounts)
    return expected, set(paid)


@given(buffers, worlds, st.sampled_from(["end", "once", "sum"]))
@settings(max_examples=150, deadline=None)
def test_payment_is_that_of_the_slow_reference(buffer: HistoryBuffer, world: Any, assign: str) -> None:
    num_envs, rollouts, seed = world
    lives, history = Lives(num_envs, seed), History({"one": buffer}, num_envs, max(rollouts))
    history.start(lives.frames(num_envs))
    for length in rollouts:
        history.begin()
        for _ in range(length):
            ended = lives.random.random(num_envs) < lives.ends
            history.add(lives.frames(num_envs), ended, lives.frames(int(ended.sum())))
        windows, shape = history.windows(), (length, num_envs)
        rewards = lives.random.normal(size=len(windows)).astype(np.float32)
        paid, judged = pay_windows(windows, rewards, shape, assign=assign, interval_reward=-0.25)
        expected, places = slow_pay(windows, rewards, shape, assign, -0.25)
        np.testing.assert_allclose(paid, expected, rtol=1e-6, atol=1e-6)
        assert {(int(step), int(env)) for step, env in np.argwhere(judged)} == places


def lived(buffer: HistoryBuffer, episode: int, steps: int) -> Windows:
    """Of one environment whose episodes are `episode` steps long."""
    lives, history = Lives(1, 0), History({"one": buffer}, 1, steps)
    history.start(lives.frames(1))
    history.begin()
    for step in range(1, steps + 1):
        ended = np.array([step % episode == 0])
        history.add(lives.frames(1), ended, lives.frames(int(ended.sum())))
    return history.windows()


def test_windows_by_hand() -> None:
    """Episodes of 7 steps: frames 0…7, then (the first state of the next one) 8, 9, …"""
    every = lived(HistoryBuffer(history_size=3, min_history_size=3, history_keys=("main_images",)), 7, 10)
    assert [frames for *_, frames in told(every)] == [
        [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6], [5, 6, 7], [8, 9, 10], [9, 10, 11],
    ]  # fmt: skip
    tiled = HistoryBuffer(history_size=3, min_history_size=3, input_interval=2, history_keys=("main_images",))
    assert [frames for *_, frames in told(lived(tiled, 7, 7))] == [[0, 1, 2], [2, 3, 4], [4, 5, 6]]
    ends = HistoryBuffer(
        history_size=3, min_history_size=3, input_interval=2, input_on_done=True, history_keys=("main_images",)
    )
    assert [frames for *_, frames in told(lived(ends, 7, 7))] == [[0, 1, 2], [2, 3, 4], [4, 5, 6], [5, 6, 7]]
    growing = HistoryBuffer(history_size=3, min_history_size=1, history_keys=("main_images",))
    assert [frames for *_, frames in told(lived(growing, 7, 3))] == [[0, 1], [0, 1, 2], [1, 2, 3]]
    assert len(lived(HistoryBuffer(history_keys=("main_images",)), 3, 12)) == 0  # never five frames


@pytest.mark.parametrize(
    ("assign", "expected"),
    [
        ("end", [9, 1, 9, -2, 9, 9, 4]),
        ("once", [1, 1, -2, -2, 9, 4, 4]),  # windows of 3 frames every 2 steps: no step is judged twice
        ("sum", [1, 1, -2, -2, 9, 4, 4]),
    ],
)
def test_payment_by_hand(assign: str, expected: list[float]) -> None:
    """Episodes of 5 steps; windows end at steps 1 and 3, and at step 1 of the second episode."""
    buffer = HistoryBuffer(history_size=3, min_history_size=3, input_interval=2, history_keys=("main_images",))
    paid, judged = pay_windows(lived(buffer, 5, 7), np.array([1, -2, 4.0]), (7, 1), assign=assign, interval_reward=9.0)
    assert paid[:, 0].tolist() == expected
    assert judged[:, 0].tolist() == [pay != 9 for pay in expected]


def test_overlapping_windows_pay_a_step_once_or_are_summed() -> None:
    """Windows of 3 frames at every step from the second on: steps 1…4 are judged by two of them."""
    windows = lived(HistoryBuffer(history_size=3, min_history_size=3, history_keys=("main_images",)), 9, 6)
    rewards = np.array([1, 2, 4, 8, 16.0])
    once, _ = pay_windows(windows, rewards, (6, 1), assign="once", interval_reward=0.0)
    assert once[:, 0].tolist() == [1, 1.5, 3, 6, 12, 16]
    total, _ = pay_windows(windows, rewards, (6, 1), assign="sum", interval_reward=0.0)
    assert total[:, 0].tolist() == [1, 3, 6, 12, 24, 16]
    with pytest.raises(RefereeError, match="history_reward_assign"):
        pay_windows(windows, rewards, (6, 1), assign="twice", interval_reward=0.0)
    with pytest.raises(RefereeError, match="do not fit 5 windows"):
        pay_windows(windows, rewards[:2], (6, 1), assign="end", interval_reward=0.0)


def test_frames_are_kept_once_and_windows_are_views() -> None:
    buffer = HistoryBuffer(history_size=5, min_history_size=5)
    history = History({"a": buffer, "b": HistoryBuffer(history_size=2, min_history_size=2)}, 2, 20)
    shapes = {"main_images": (4, 4, 3), "extra_view_images": (1, 4, 4, 3), "states": (7,)}
    frames = {name: np.zeros((2, *shape), np.uint8) for name, shape in shapes.items()}
    nobody = {name: images[:0] for name, images in frames.items()}
    history.start(frames)
    for _ in range(3):
        history.begin()
        for _ in range(20):
            history.add(frames, np.zeros(2, bool), nobody)
    windows = history.windows()
    assert len(windows) == 2 * 2 * 20
    first, second = windows.window(0, "lift"), windows.window(4, "lift")
    assert first.task == "lift" and set(first.frames) == {"main_images", "extra_view_images"}
    assert np.shares_memory(first.frames["main_images"], second.frames["main_images"])
    # Four frames of the past, twenty steps, and two slots to spare for ends of episodes; two views each.
    assert history.bytes_per_env == 26 * 2 * 48
    assert sum(images.nbytes for images in windows.packed().frames.values()) == 2 * 24 * 2 * 48


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"input_interval": 0}, "input_interval is 0"),
        ({"history_size": 3}, "min_history_size=5 is more than history_size=3"),
        ({"history_keys": ("states",)}, "history_keys are"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], line: str) -> None:
    with pytest.raises(RefereeError, match=line):
        HistoryBuffer(**wrong)


def test_another_history_is_not_resumed() -> None:
    lives, wide = Lives(1, 0), History({"one": HistoryBuffer(history_keys=("main_images",))}, 1, 3)
    wide.start(lives.frames(1))
    narrow = HistoryBuffer(history_size=2, min_history_size=2, history_keys=("main_images",))
    with pytest.raises(RefereeError, match="kept 4 frames"):
        History({"one": narrow}, 1, 3).restore_state(wide.save_state())
