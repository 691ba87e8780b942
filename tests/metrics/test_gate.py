"""The gate over time by hand and by slow definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from referee.metrics.gate import counts, first, gate, gate_level

gates = st.integers(1, 6).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n)))


def test_by_hand() -> None:
    says = np.array([0, 1, 0, 1, 1, 0, 0, 1], bool)
    assert gate(says, 2, 3).astype(int).tolist() == [0, 0, 0, 1, 1, 1, 0, 0]
    assert gate(says, 1, 1).tolist() == says.tolist()
    assert gate(says, 3, 3).any() == False  # noqa: E712 - numpy's
    assert gate(np.ones(2, bool), 2, 5).tolist() == [False, True]  # fewer than n states, still k
    assert counts(says, 3).tolist() == [0, 1, 1, 2, 2, 2, 1, 1]


@given(st.lists(st.booleans(), max_size=20), gates)
def test_the_definition(says: list[bool], kn: tuple[int, int]) -> None:
    k, n = kn
    slow = [sum(says[max(0, t - n + 1) : t + 1]) >= k for t in range(len(says))]
    assert gate(np.array(says, bool), k, n).tolist() == slow


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), gates, st.integers(0, 6))
def test_the_level_tells_every_threshold(values: list[int], kn: tuple[int, int], threshold: int) -> None:
    found = np.array(values, np.float32)
    level = gate_level(found, *kn)
    assert level.dtype == np.float32
    assert (level >= threshold).tolist() == gate(found >= threshold, *kn).tolist()


def test_time_is_the_last_axis() -> None:
    says = np.random.default_rng(0).random((4, 3, 12)) < 0.5
    together = gate(says, 2, 4)
    level = gate_level(says.astype(np.float32), 2, 4)
    for i in range(4):
        for j in range(3):
            assert (together[i, j] == gate(says[i, j], 2, 4)).all()
    assert ((level >= 1) == together).all()
    assert (first(together)[together.any(-1)] == together.argmax(-1)[together.any(-1)]).all()
    assert first(np.zeros((2, 5), bool)).tolist() == [-1, -1]


@pytest.mark.parametrize(("k", "n"), [(0, 1), (3, 2), (1, 0)])
def test_impossible_gates_are_refused(k: int, n: int) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        gate(np.ones(3, bool), k, n)
