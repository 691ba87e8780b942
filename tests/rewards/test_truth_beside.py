"""Truth beside the verdict: numbers by hand, and the interval against published values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from referee.errors import RefereeError
from referee.metrics.rates import wilson
from referee.rewards import TruthBeside, paired_difference

COUNTS = st.integers(0, 30)


def test_by_hand() -> None:
    """3 rightly paid, 2 paid for nothing, 1 missed, 4 rightly not paid."""
    truth = TruthBeside()
    truth.add(np.array([1, 1, 1, 1, 0], bool), np.array([1, 1, 0, 0, 0], bool))
    truth.add(np.array([[1, 0, 0, 0, 0]], bool), np.array([[1, 1, 0, 0, 0]], bool))
    found = truth.log()
    gap = truth.hacking_gap
    assert found == {
        "reward/judged": 10,
        "reward/precision": 3 / 5,
        "reward/recall": 3 / 4,
        "reward/agreement": 7 / 10,
        "reward/model_success": 0.5,
        "reward/true_success": 0.4,
        "reward/hacking_gap": 0.1,
        "reward/hacking_gap_low": gap.low,
        "reward/hacking_gap_high": gap.high,
    }
    # Wilson: 5 of 10 is 0.236593..0.763407, 4 of 10 is 0.168180..0.687326.
    # phi: (3·4 − 2·1 − 10/2) / sqrt(5·5·4·6) = 5 / 24.494897 = 0.204124
    # low: 0.1 − sqrt(0.263407² + 0.287326² − 2·0.204124·0.263407·0.287326) = 0.1 − 0.347911
    # high: 0.1 + sqrt(0.263407² + 0.231820² − 2·0.204124·0.263407·0.231820) = 0.1 + 0.313361
    assert gap.low == pytest.approx(-0.247911, abs=2e-6) and gap.high == pytest.approx(0.413361, abs=2e-6)


def test_the_interval_as_published() -> None:
    """Complete response before and after therapy (Cavo 2012), as in Fagerland, Lydersen and Laake's tables."""
    found = paired_difference(59, 6, 16, 80)
    assert [round(value, 4) for value in (found.value, found.low, found.high)] == [-0.0621, -0.1186, -0.0046]


def test_the_interval_keeps_a_width_where_both_agree() -> None:
    """All of ten succeed and are seen: each rate is at least Wilson's 0.7225, and so far apart they may be."""
    found = paired_difference(10, 0, 0, 0)
    low = wilson(10, 10)[0]
    assert found.value == 0 and found.low == pytest.approx(low - 1) and found.high == pytest.approx(1 - low)
    mixed = paired_difference(500, 0, 0, 500)
    assert mixed.low < 0 < mixed.high < 0.01


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_the_interval_holds_the_gap_and_mirrors(both: int, model: int, true: int, neither: int) -> None:
    found, mirrored = paired_difference(both, model, true, neither), paired_difference(both, true, model, neither)
    if both + model + true + neither == 0:
        assert math.isnan(found.value)
        return
    assert -1 - 1e-12 <= found.low <= found.value <= found.high <= 1 + 1e-12
    assert found.low == pytest.approx(-mirrored.high, abs=1e-12)


def test_what_was_not_seen_is_left_out() -> None:
    truth = TruthBeside()
    assert truth.log() == {"reward/judged": 0}
    truth.add(np.zeros(4, bool), np.zeros(4, bool))
    found = truth.log("eval")
    assert "eval/precision" not in found and "eval/recall" not in found
    assert found["eval/agreement"] == 1.0 and found["eval/hacking_gap"] == 0.0
    truth.reset()
    assert truth.count == 0
    with pytest.raises(RefereeError, match="differ in shape"):
        truth.add(np.zeros(4, bool), np.zeros(3, bool))


@given(st.lists(st.tuples(COUNTS, COUNTS, COUNTS, COUNTS), max_size=4))
def test_what_was_logged_adds_up_to_what_was_counted(parts: list[tuple[int, int, int, int]]) -> None:
    again = TruthBeside()
    for both, model_only, true_only, neither in parts:
        truth = TruthBeside()
        truth.both, truth.model_only, truth.true_only, truth.neither = both, model_only, true_only, neither
        again.add_log(truth.log("eval"), "eval")
    found = again.both, again.model_only, again.true_only, again.neither
    assert found == tuple(np.sum(parts, axis=0, dtype=int) if parts else (0, 0, 0, 0))
