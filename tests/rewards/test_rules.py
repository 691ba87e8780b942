"""The table of docs/rewards.md, cell by cell, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from referee.errors import RefereeError
from referee.models import Verdict
from referee.rewards import RewardOptions, combine, ends_episode, model_rewards

VERDICT = Verdict(
    score=np.array([1.5, -1.5], np.float32),
    probability=np.array([0.75, 0.25], np.float32),
    success=np.array([True, False]),
)
ENV = np.array([3.0, 3.0], np.float32)
NUMBERS: dict[str, Any] = {"success_reward": 2, "fail_reward": -1, "reward_weight": 10, "env_reward_weight": 0.5}


@pytest.mark.parametrize(
    ("reward_type", "expected"), [("binary", [2, -1]), ("continuous", [0.75, 0]), ("score", [1.5, -1.5])]
)
def test_mapping(reward_type: str, expected: list[float]) -> None:
    found = model_rewards(VERDICT, RewardOptions(reward_type=reward_type, **NUMBERS), threshold=0.5)
    assert found.dtype == np.float32 and found.tolist() == expected


@pytest.mark.parametrize(
    ("reward_type", "combine_mode", "expected"),
    [
        ("binary", "replace", [20, -10]),
        ("binary", "add", [23, -7]),
        ("binary", "weighted", [21.5, -8.5]),
        ("continuous", "replace", [7.5, 0]),
        ("continuous", "add", [10.5, 3]),
        ("continuous", "weighted", [9, 1.5]),
        ("score", "replace", [15, -15]),
        ("score", "add", [18, -12]),
        ("score", "weighted", [16.5, -13.5]),
    ],
)
def test_every_cell(reward_type: str, combine_mode: str, expected: list[float]) -> None:
    options = RewardOptions(reward_type=reward_type, combine_mode=combine_mode, **NUMBERS)
    model = model_rewards(VERDICT, options, threshold=0.5)
    found = combine(ENV, model, options)
    assert found.dtype == np.float32 and found.tolist() == expected
    with_bonus = RewardOptions(reward_type=reward_type, combine_mode=combine_mode, gt_success_bonus=20, **NUMBERS)
    paid = combine(ENV, model, with_bonus, true_success=np.array([False, True]))
    assert paid.tolist() == [expected[0], expected[1] + 20]


def test_the_default_is_the_learned_reward_alone() -> None:
    options = RewardOptions()
    model = model_rewards(VERDICT, options, threshold=0.5)
    assert model.tolist() == [1, 0]
    for env in ([5.0, -5.0], [np.nan, np.inf]):  # a weight of 0 leaves out even what is no number
        found = combine(np.array(env), model, options, true_success=np.array([True, True]))
        assert found.tobytes() == np.array([1, 0], np.float32).tobytes()


def test_a_probability_at_the_threshold_counts() -> None:
    options = RewardOptions(reward_type="continuous")
    probability = np.array([0.3, 0.29999, 1.0, 0.0], np.float32)
    found = model_rewards(Verdict(probability, probability, None), options, threshold=0.3)
    assert found.tolist() == [np.float32(0.3), 0, 1, 0]


def test_a_probability_below_the_threshold_can_be_kept() -> None:
    probability = np.array([0.9, 0.3, 0.01], np.float32)
    verdict = Verdict(probability, probability, probability >= 0.5)
    for below, expected in (("zero", [np.float32(0.9), 0, 0]), ("keep", probability.tolist())):
        options = RewardOptions(reward_type="continuous", below_threshold=below)
        assert model_rewards(verdict, options, threshold=0.5).tolist() == expected
    with pytest.raises(RefereeError, match=r"reward\.below_threshold is 'half': use zero or keep"):
        RewardOptions(below_threshold="half")


def test_rollouts_keep_their_shape() -> None:
    rows = Verdict(np.ones((5, 3), np.float32), None, np.eye(5, 3, dtype=bool))
    model = model_rewards(rows, RewardOptions(), threshold=0.5)
    assert (model == np.eye(5, 3)).all()
    options = RewardOptions(combine_mode="add")
    assert combine(np.ones((5, 3)), model, options).shape == (5, 3)
    with pytest.raises(RefereeError, match=r"rewards of the environment have the shape \[3\], .* \[5, 3\]"):
        combine(np.ones(3), model, options)


@pytest.mark.parametrize(("reward_type", "what"), [("binary", "success"), ("continuous", "probability")])
def test_a_verdict_that_lacks_what_is_needed(reward_type: str, what: str) -> None:
    only_score = Verdict(VERDICT.score, None, None)
    with pytest.raises(RefereeError, match=f"reward_type is {reward_type}, but the model gives no {what}"):
        model_rewards(only_score, RewardOptions(reward_type=reward_type), threshold=0.5)
    assert model_rewards(only_score, RewardOptions(reward_type="score"), threshold=0.5).tolist() == [1.5, -1.5]


def test_who_ends_an_episode() -> None:
    model, truth = np.array([True, False]), np.array([False, True])
    assert ends_episode(RewardOptions(), model=model, truth=truth) is None
    for name, expected in (("model", model), ("truth", truth)):
        found = ends_episode(RewardOptions(terminate_on=name), model=model, truth=truth)
        assert found is not None and found.tolist() == expected.tolist()
        with pytest.raises(RefereeError, match=f"terminate_on is {name}"):
            ends_episode(RewardOptions(terminate_on=name), model=None, truth=None)


def test_a_bonus_needs_the_truth() -> None:
    with pytest.raises(RefereeError, match="gt_success_bonus"):
        combine(ENV, ENV, RewardOptions(gt_success_bonus=1))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"reward_mode": "history"}, "reward_mode is 'history': use per_step or terminal"),
        ({"reward_type": "prob"}, "reward_type"),
        ({"combine_mode": "sum"}, "use weighted or replace or add"),
        ({"terminate_on": True}, "terminate_on"),
        ({"reward_weight": float("nan")}, "reward_weight is nan"),
        ({"success_reward": "1"}, "success_reward"),
        ({"gt_success_bonus": True}, "gt_success_bonus"),
        ({"reward_threshold": 1.5}, r"0\.\.1"),
        ({"gate_k": 0, "reward_mode": "per_step"}, "gate_k is 0"),
        ({"gate_n": 2.0, "reward_mode": "per_step"}, "gate_n"),
        ({"gate_k": 2}, "gate_k changes nothing with reward_mode=terminal"),
        ({"gate_n": 2, "reward_mode": "per_step", "reward_type": "score"}, "gate_n changes nothing"),
    ],
)
def test_options_that_cannot_be(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RefereeError, match=message):
        RewardOptions(**values)


def test_a_gate_acts_where_it_pays_or_ends() -> None:
    assert RewardOptions(reward_mode="per_step", gate_k=2, gate_n=3).gate_acts
    assert RewardOptions(terminate_on="model", reward_type="score", gate_k=2).gate_acts
    assert not RewardOptions().gate_acts
