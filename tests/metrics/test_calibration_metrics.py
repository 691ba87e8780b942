"""Calibration numbers by hand and by slow definition."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from referee.metrics import brier, ece, nll, probability, reliability
from referee.metrics.calibration import bin_of, logit


def test_numbers_by_hand() -> None:
    labels, said = np.array([1, 1, 0, 0]), np.array([0.9, 0.6, 0.3, 0.6])
    assert brier(labels, said) == pytest.approx((0.01 + 0.16 + 0.09 + 0.36) / 4)
    # Two bins: {0.3} said 0.3 true 0; {0.9, 0.6, 0.6} said 0.7 true 2/3.
    found = reliability(labels, said, 2)
    assert found.said == pytest.approx([0.3, 0.7]) and found.true == pytest.approx([0.0, 2 / 3])
    assert found.count.tolist() == [1, 3]
    assert ece(labels, said, 2) == pytest.approx(0.25 * 0.3 + 0.75 * (0.7 - 2 / 3))
    # Equal mass: {0.3, 0.6, 0.6} stay together because of the tie, and {0.9}.
    assert reliability(labels, said, 2, equal="mass").count.tolist() == [3, 1]
    assert nll(np.array([1, 0]), np.array([2.0, -1.0])) == pytest.approx(
        (math.log1p(math.exp(-2)) + math.log1p(math.exp(-1))) / 2
    )


def test_a_perfect_and_a_blind_model() -> None:
    labels = np.array([0, 1, 1, 0])
    assert brier(labels, labels.astype(float)) == ece(labels, labels.astype(float)) == 0.0
    assert brier(labels, np.full(4, 0.5)) == 0.25 and ece(labels, np.full(4, 0.5)) == 0.0


@given(st.integers(1, 200), st.integers(1, 20), st.sampled_from(["width", "mass"]), st.integers(0, 99))
def test_ece_by_its_definition(count: int, bins: int, equal: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    said = random.integers(0, 21, count) / 20
    labels = (random.random(count) < said).astype(int)
    which = bin_of(said, bins, equal=equal)  # type: ignore[arg-type]
    assert which.min() >= 0 and which.max() < bins
    slow = sum(
        (which == each).mean() * abs(said[which == each].mean() - labels[which == each].mean())
        for each in np.unique(which)
    )
    assert ece(labels, said, bins, equal=equal) == pytest.approx(slow)  # type: ignore[arg-type]
    assert (np.diff(which[np.argsort(said)]) >= 0).all()


def test_equal_mass_bins_hold_equally_many() -> None:
    said = np.random.default_rng(0).random(1000) ** 8
    assert np.bincount(bin_of(said, 10, equal="mass")).tolist() == [100] * 10


def test_said_is_true_where_a_model_is_calibrated() -> None:
    random = np.random.default_rng(0)
    said = random.random(200_000)
    labels = (random.random(200_000) < said).astype(int)
    assert ece(labels, said) < 0.005
    assert brier(labels, said) == pytest.approx(1 / 6, abs=0.003)  # the mean of p(1-p)


def test_sigmoid_and_back() -> None:
    logits = np.array([-1000.0, -3.0, 0.0, 3.0, 1000.0])
    found = probability(logits)
    assert found.dtype == np.float32
    assert found == pytest.approx([0, 1 / (1 + math.exp(3)), 0.5, 1 / (1 + math.exp(-3)), 1])
    assert probability(np.array([3.0]), 2.0)[0] == pytest.approx(1 / (1 + math.exp(-1.5)))
    assert (
        logit(np.array([0.2, 0.5, 0.999])) == pytest.approx([math.log(0.25), 0, math.log(999)], abs=1e-9)
        and np.isfinite(logit(np.array([0.0, 1.0]))).all()
    )
    assert nll(np.array([1]), np.array([-1000.0])) == 1000.0


@pytest.mark.parametrize(
    ("labels", "said", "why"),
    [
        ([0, 1], [0.1], "differ"),
        ([0, 2], [0.1, 0.2], "0 or 1"),
        ([0, 1], [0.1, 1.2], "outside"),
        ([1], [math.nan], "outside"),
    ],
)
def test_bad_input_is_refused(labels: list[int], said: list[float], why: str) -> None:
    for metric in (brier, ece):
        with pytest.raises(ValueError, match=why):
            metric(np.array(labels), np.array(said))
    with pytest.raises(ValueError, match="bins"):
        ece(np.array([1]), np.array([0.5]), 0)
