"""Wilson's interval against published and hand-computed numbers, and its properties."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from referee.metrics import Rate, wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        # Newcombe (1998), table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_published_intervals(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=6e-5)


def test_the_ends_solve_the_score_equation() -> None:
    """By definition |share − p| = z·√(p(1−p)/n) at both ends."""
    z = 1.959963984540054
    for p in wilson(37, 64):
        assert abs(37 / 64 - p) == pytest.approx(z * math.sqrt(p * (1 - p) / 64), rel=1e-9)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_share_lies_inside_and_the_mirror_image_fits(pair: tuple[int, int]) -> None:
    successes, trials = pair
    low, high = wilson(successes, trials)
    assert 0.0 <= low <= successes / trials <= high <= 1.0
    assert low < high
    mirrored = wilson(trials - successes, trials)
    assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high), abs=1e-12)


@given(st.integers(1, 500), st.floats(0, 1))
def test_more_trials_narrow_the_interval(trials: int, share: float) -> None:
    few, many = wilson(round(share * trials), trials), wilson(4 * round(share * trials), 4 * trials)
    assert many[1] - many[0] < few[1] - few[0]


def test_nothing_tried_is_nothing_known() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert math.isnan(Rate(0, 0).share)


@pytest.mark.parametrize(("successes", "trials"), [(3, 2), (-1, 5)])
def test_impossible_counts_are_refused(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        wilson(successes, trials)


def test_a_rate_reads_well() -> None:
    assert str(Rate(81, 263)) == "30.8 % [25.5, 36.6] of 263"
