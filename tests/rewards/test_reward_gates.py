"""The gate: by hand, and step by step = whole rollouts = the metric's definition per episode."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from referee.errors import RefereeError
from referee.metrics.gate import gate
from referee.rewards import Gate

KN = st.integers(1, 6).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n)))
SIZES = st.tuples(st.integers(0, 25), st.integers(1, 4), st.integers(0, 2**32 - 1))


def test_by_hand() -> None:
    """The example of docs/rewards.md."""
    says = np.array([1, 0, 1, 1, 0, 0], bool)
    began = np.array([1, 0, 0, 1, 0, 0], bool)
    online = Gate(1, 2, 3)
    assert [bool(online.step(says[t : t + 1], began[t : t + 1])[0]) for t in range(6)] == [0, 0, 1, 0, 0, 0]
    assert Gate(1, 2, 3).steps(says[:, None], began[:, None])[:, 0].tolist() == [0, 0, 1, 0, 0, 0]


@given(SIZES, KN, st.integers(0, 25))
def test_online_offline_and_the_metric_agree(sizes: tuple[int, int, int], kn: tuple[int, int], cut: int) -> None:
    (steps, envs, seed), (k, n) = sizes, kn
    random = np.random.default_rng(seed)
    says, began = random.random((steps, envs)) < 0.6, random.random((steps, envs)) < 0.2

    expected = np.zeros((steps, envs), bool)
    for env in range(envs):
        starts = sorted({0, *np.flatnonzero(began[:, env]).tolist(), steps})
        for low, high in pairwise(starts):
            expected[low:high, env] = gate(says[low:high, env], k, n)

    online = Gate(envs, k, n)
    found = np.array([online.step(says[t], began[t]) for t in range(steps)], bool).reshape(steps, envs)
    np.testing.assert_array_equal(found, expected)

    whole = Gate(envs, k, n)
    np.testing.assert_array_equal(whole.steps(says, began), expected)
    pieces = Gate(envs, k, n)  # an episode goes on across rollouts
    np.testing.assert_array_equal(pieces.steps(says[:cut], began[:cut]), expected[:cut])
    np.testing.assert_array_equal(pieces.steps(says[cut:], began[cut:]), expected[cut:])
    for other in (whole, pieces):
        np.testing.assert_array_equal(other.save_state()["recent"], online.save_state()["recent"])


def test_a_restored_gate_goes_on_exactly() -> None:
    random = np.random.default_rng(0)
    says, began = random.random((40, 5)) < 0.5, random.random((40, 5)) < 0.1
    through, first, second = Gate(5, 2, 4), Gate(5, 2, 4), Gate(5, 2, 4)
    expected = through.steps(says, began)
    first.steps(says[:17], began[:17])
    state = first.save_state()
    first.steps(says[17:], began[17:])  # what was saved does not change with it
    second.restore_state(state)
    np.testing.assert_array_equal(second.steps(says[17:], began[17:]), expected[17:])


def test_reset_forgets_some_or_all() -> None:
    online, nothing, yes = Gate(2, 2, 2), np.zeros(2, bool), np.ones(2, bool)
    online.step(yes, nothing)
    online.reset(np.array([True, False]))
    assert online.step(yes, nothing).tolist() == [False, True]
    online.reset()
    assert online.step(yes, nothing).tolist() == [False, False]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(RefereeError, match=r"gate_k and reward\.gate_n: a gate of 3 of 2"):
        Gate(1, 3, 2)
    with pytest.raises(RefereeError, match=r"must be \[T,2\]"):
        Gate(2, 1, 1).steps(np.ones((4, 3), bool), np.ones((4, 3), bool))
    with pytest.raises(RefereeError, match="saved gate is"):
        Gate(2, 1, 3).restore_state(Gate(2, 1, 2).save_state())
    with pytest.raises(RefereeError, match="saved gate is missing"):
        Gate(2, 1, 3).restore_state({})
