"""Which frames are asked about: few, telling, unlike each other, and some by chance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from referee.errors import RefereeError
from referee.refine.select import REASONS, SHARES, Candidates, choose, spread


def frames(count: int, seed: int = 0) -> Candidates:
    random = np.random.default_rng(seed)
    return Candidates(
        random.random(count, dtype=np.float32),
        random.exponential(size=count).astype(np.float32),
        random.standard_normal((count, 3), dtype=np.float32),
    )


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 40),
    st.integers(0, 50),
    st.integers(0, 1000),
    st.dictionaries(st.sampled_from(REASONS), st.floats(0.1, 1), min_size=1),
)
def test_no_frame_twice_and_no_more_than_asked_for(
    there: int, wanted: int, seed: int, shares: dict[str, float]
) -> None:
    found = choose(frames(there, seed), wanted, threshold=0.6, random=np.random.default_rng(seed), shares=shares)
    assert len(found.rows) == len(found.reasons) <= min(there, wanted)
    assert len(set(found.rows.tolist())) == len(found.rows)
    assert set(found.reasons) <= set(shares)
    if set(shares) - {"firing"}:  # the others may choose any frame
        assert len(found.rows) == min(there, wanted)
    again = choose(frames(there, seed), wanted, threshold=0.6, random=np.random.default_rng(seed), shares=shares)
    assert np.array_equal(found.rows, again.rows) and found.reasons == again.reasons


def test_each_reason_gets_its_share() -> None:
    found = choose(frames(200), 40, threshold=0.5, random=np.random.default_rng(0))
    assert {reason: found.reasons.count(reason) for reason in REASONS} == dict.fromkeys(SHARES, 10)


def test_each_reason_chooses_what_it_says() -> None:
    there = frames(300)
    found = choose(there, 40, threshold=0.8, random=np.random.default_rng(0))
    assert (there.probability[found.of("firing")] >= 0.8).all()
    gap = np.abs(there.probability - 0.8)
    assert gap[found.of("unsure")].max() < np.quantile(gap, 0.25)
    assert there.distance[found.of("strange")].min() > np.quantile(there.distance, 0.8)


def test_chance_is_even() -> None:
    counts = np.zeros(20)
    for seed in range(400):
        found = choose(frames(20), 4, threshold=0.5, random=np.random.default_rng(seed), shares={"random": 1.0})
        counts[found.rows] += 1
    assert abs(counts - 80).max() < 5 * np.sqrt(80)


def test_new_kinds_of_success_come_first() -> None:
    """Two clusters fire; one of them was confirmed before."""
    summary = np.concatenate([np.zeros((10, 2)), np.full((10, 2), 5.0)]).astype(np.float32)
    there = Candidates(np.full(20, 0.9, np.float32), np.ones(20, np.float32), summary)
    known = np.zeros((1, 2), np.float32)
    found = choose(there, 3, threshold=0.5, random=np.random.default_rng(0), confirmed=known, shares={"firing": 1.0})
    assert (found.rows >= 10).all()


def test_nothing_fires_and_the_others_get_the_share() -> None:
    there = Candidates(np.zeros(30, np.float32), np.ones(30, np.float32), np.eye(30, dtype=np.float32))
    found = choose(there, 12, threshold=0.5, random=np.random.default_rng(0))
    assert len(found.rows) == 12 and "firing" not in found.reasons


def test_spread_by_hand() -> None:
    line = np.array([[0.0], [1.0], [2.0], [9.0], [10.0]])
    assert spread(line, np.arange(5), 3, np.zeros((0, 1))).tolist() == [0, 4, 2]
    assert spread(line, np.arange(5), 2, np.array([[10.0]])).tolist() == [0, 2]
    assert spread(line, np.array([3, 4]), 5, np.zeros((0, 1))).tolist() == [3, 4]


@pytest.mark.parametrize("shares", [{}, {"random": 0.0}, {"odd": 1.0}, {"random": -1.0, "firing": 2.0}])
def test_shares_that_cannot_be(shares: dict[str, float]) -> None:
    with pytest.raises(RefereeError, match="shares"):
        choose(frames(5), 2, threshold=0.5, random=np.random.default_rng(0), shares=shares)


def test_rows_must_fit() -> None:
    with pytest.raises(RefereeError, match="do not fit"):
        Candidates(np.zeros(2), np.zeros(3), np.zeros((2, 4)))
