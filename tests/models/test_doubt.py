"""What validation says against a model: told where it is not shown to be better than chance, and only there."""

import math

import numpy as np
import pytest

from referee.audit.calibrate import calibrate
from referee.audit.judged import Judged
from referee.models.doubt import doubt


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ({"auroc": 0.9, "auroc_low": 0.8, "auroc_high": 0.95}, ""),
        (
            {"auroc": 0.7, "auroc_low": 0.45, "auroc_high": 0.9},
            "cannot be told from chance on its validation (AUROC 0.7",
        ),
        (
            {"auroc": 0.3, "auroc_low": 0.2, "auroc_high": 0.45},
            "is worse than chance on its validation (AUROC 0.300 [0.",
        ),
        ({"auroc": None, "auroc_low": None, "auroc_high": None}, "all of its validation frames are of one kind"),
    ],
)
def test_by_the_interval_of_calibration(measured: dict[str, float | None], words: str) -> None:
    assert words in doubt(measured, {"val": {"auroc": 0.99}})
    assert bool(words) == bool(doubt(measured, {}))


def test_by_provenance_where_nobody_calibrated() -> None:
    assert "is worse than chance on its validation (AUROC 0.400)" in doubt({}, {"val": {"auroc": 0.4}})
    assert doubt({}, {"val": {"auroc": 0.8}}) == ""
    assert "without validation" in doubt({}, {"val": None})
    assert doubt({}, {"imported": "weights.pt"}) == doubt({}, {}) == ""


def test_calibration_measures_it_on_whole_episodes() -> None:
    random = np.random.default_rng(0)
    labels = [(np.arange(10) >= (5 if i % 2 else 10)).astype(np.int8) for i in range(20)]
    good = calibrate([Judged(f"e{i}", each, 4.0 * each + random.normal(size=10)) for i, each in enumerate(labels)])
    assert good.measured["auroc"] > 0.97 and 0.9 < good.measured["auroc_low"] <= good.measured["auroc"]
    bad = calibrate([Judged(f"e{i}", each, random.normal(size=10)) for i, each in enumerate(labels)])
    assert bad.measured["auroc_low"] < 0.5 and "chance" in doubt(bad.measured, {})
    one = calibrate([Judged("e", np.ones(4, np.int8), np.arange(4.0))])
    assert one.measured["auroc"] is None and not math.isnan(one.threshold)
    assert "of one kind" in doubt(one.measured, {})
