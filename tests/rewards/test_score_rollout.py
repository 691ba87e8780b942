"""Deferred scoring: each state is paid at its own step, whatever ended when."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest

from referee.errors import RefereeError
from referee.metrics.gate import gate as gate_of
from referee.models import Verdict
from referee.rewards import (
    FinalPictures,
    Gate,
    RewardOptions,
    combine,
    model_rewards,
    pay_steps,
    score_finals,
    score_steps,
)


class Judge:
    """Reads the verdict off the first pixel: success from 128 on."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def __call__(self, observations: Mapping[str, np.ndarray]) -> Verdict:
        images = observations["main_images"]
        assert images.ndim == 4
        self.batches.append(len(images))
        probability = images[:, 0, 0, 0].astype(np.float32) / 256
        return Verdict(probability, probability, probability >= 0.5)


class World:
    """Two environments with autoreset whose pictures show a given number; finals exist in their own step only."""

    def __init__(self, ends: dict[tuple[int, int], int]) -> None:
        self.ends, self.step = ends, -1
        self.drawn: list[list[int]] = []

    def ended(self, step: int) -> np.ndarray:
        self.step = step
        return np.array([(step, env) in self.ends for env in range(2)])

    def draw(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        self.drawn.append(ids.tolist())
        return {"main_images": pictures([self.ends[self.step, int(env)] for env in ids])}


def pictures(values: list[int]) -> np.ndarray:
    return np.broadcast_to(np.array(values, np.uint8)[:, None, None, None], (len(values), 8, 8, 3)).copy()


def pay(verdict: Verdict) -> np.ndarray:
    return model_rewards(verdict, RewardOptions(fail_reward=-1), threshold=0.5)


def test_terminal_mode_pays_every_episode_at_its_own_end() -> None:
    world, judge = World({(1, 0): 10, (4, 0): 200, (1, 1): 255, (2, 1): 0, (5, 1): 130}), Judge()
    finals = FinalPictures(world.draw)
    for step in range(6):
        finals.add(step, world.ended(step))
    found = score_finals(finals, (6, 2), judge=judge, pay=pay)
    expected = np.zeros((6, 2))
    for (step, env), value in world.ends.items():
        expected[step, env] = 1 if value >= 128 else -1
    assert expected[:, 0].tolist() == [0, -1, 0, 0, 1, 0]  # the table of docs/rewards.md
    assert found.rewards.dtype == np.float32
    np.testing.assert_array_equal(found.rewards, expected)
    np.testing.assert_array_equal(found.judged, expected != 0)
    assert found.success is not None and found.probability is not None
    np.testing.assert_array_equal(found.success, expected > 0)
    assert found.probability[4, 0] == 200 / 256 and np.isnan(found.probability[0, 0])
    assert judge.batches == [5]  # finished episodes only, all at once
    assert world.drawn == [[0, 1], [1], [0], [1]]

    truth = np.ones((6, 2), bool)
    options = RewardOptions(fail_reward=-1, gt_success_bonus=5)
    paid = combine(np.full((6, 2), 9.0), found.rewards, options, true_success=truth & found.judged)
    np.testing.assert_array_equal(paid, np.where(found.judged, expected + 5, 0))

    finals.begin()
    assert len(finals) == 0
    empty = score_finals(finals, (6, 2), judge=judge, pay=pay)
    assert judge.batches == [5] and not empty.rewards.any() and not empty.judged.any()


def test_a_drawer_that_draws_too_little_is_noticed() -> None:
    finals = FinalPictures(lambda ids: {"main_images": pictures([1])})
    with pytest.raises(RefereeError, match="1 pictures main_images were drawn of 2 episodes"):
        finals.add(0, np.array([True, True]))


def test_terminal_mode_with_a_score_alone() -> None:
    finals = FinalPictures(lambda ids: {"main_images": pictures([7] * len(ids))})
    finals.add(1, np.array([False, True]))
    found = score_finals(
        finals, (3, 2), judge=lambda images: Verdict(np.array([0.5], np.float32), None, None), pay=lambda v: v.score
    )
    assert found.rewards.tolist() == [[0, 0], [0, 0.5], [0, 0]]
    assert found.success is None and found.probability is None


def test_per_step_mode_by_hand() -> None:
    """The example of docs/rewards.md: a gate of 2 of 3, an episode that ends at the third state."""
    images = pictures([200, 0, 200, 200, 0, 0]).reshape(6, 1, 8, 8, 3)
    ended = np.array([0, 0, 1, 0, 0, 0], bool)[:, None]
    judge = Judge()
    found = score_steps({"main_images": images}, ended, judge=judge, pay=pay, gate=Gate(1, 2, 3))
    assert found.rewards[:, 0].tolist() == [-1, -1, 1, -1, -1, -1]
    assert found.success is not None and found.success[:, 0].tolist() == [0, 0, 1, 0, 0, 0]
    assert found.judged.all() and judge.batches == [6]
    assert found.probability is not None and found.probability.shape == (6, 1)


def test_a_single_camera_has_no_further_views() -> None:
    images, none = pictures([200, 0]).reshape(2, 1, 8, 8, 3), np.zeros((2, 1, 0, 8, 8, 3), np.uint8)
    both = {"main_images": images, "extra_view_images": none}
    found = score_steps(both, np.zeros((2, 1), bool), judge=Judge(), pay=pay, gate=Gate(1, 1, 1))
    assert found.rewards[:, 0].tolist() == [1, -1]


def test_per_step_rollouts_join_seamlessly() -> None:
    random = np.random.default_rng(3)
    values, ended = random.integers(0, 256, (30, 4)), random.random((30, 4)) < 0.15
    images = np.broadcast_to(values[:, :, None, None, None].astype(np.uint8), (30, 4, 2, 2, 3))
    ended[9, 1] = True  # an episode that ends with a rollout
    gate, parts = Gate(4, 2, 3), []
    for start in (0, 10, 20):
        rows = slice(start, start + 10)
        part = score_steps({"main_images": images[rows]}, ended[rows], judge=Judge(), pay=pay, gate=gate)
        parts.append(part.rewards)
    found = np.concatenate(parts)
    for env in range(4):
        starts = sorted({0, *(np.flatnonzero(ended[:, env]) + 1).tolist(), 30})
        for low, high in pairwise(starts):
            fires = gate_of(values[low:high, env] >= 128, 2, 3)
            np.testing.assert_array_equal(found[low:high, env], np.where(fires, 1, -1))


def test_the_gate_leaves_probabilities_alone() -> None:
    """`continuous` pays for single frames; the gate only decides success."""
    options = RewardOptions(reward_mode="per_step", reward_type="continuous")
    images = pictures([192, 64, 192]).reshape(3, 1, 8, 8, 3)
    found = score_steps(
        {"main_images": images},
        np.zeros((3, 1), bool),
        judge=Judge(),
        pay=lambda verdict: model_rewards(verdict, options, threshold=0.5),
        gate=Gate(1, 3, 3),
    )
    assert found.rewards[:, 0].tolist() == [0.75, 0, 0.75]
    assert found.success is not None and not found.success.any()


def test_states_judged_already_are_paid_the_same() -> None:
    verdict = Judge()({"main_images": pictures([200, 0, 200, 200, 0, 0])})
    ended = np.array([0, 0, 1, 0, 0, 0], bool)[:, None]
    found = pay_steps(verdict, ended, pay=pay, gate=Gate(1, 2, 3))
    assert found.rewards[:, 0].tolist() == [-1, -1, 1, -1, -1, -1]
    only_score = Verdict(np.arange(6, dtype=np.float32), None, None)
    found = pay_steps(only_score, ended, pay=lambda verdict: verdict.score, gate=Gate(1, 2, 3))
    assert found.rewards[:, 0].tolist() == [0, 1, 2, 3, 4, 5] and found.success is None


def test_pictures_of_another_rollout_are_refused() -> None:
    with pytest.raises(RefereeError, match=r"main_images are of \[3, 1\] steps and environments, not \[3, 2\]"):
        score_steps(
            {"main_images": pictures([0] * 3)[:, None]},
            np.zeros((3, 2), bool),
            judge=Judge(),
            pay=pay,
            gate=Gate(2, 1, 1),
        )
