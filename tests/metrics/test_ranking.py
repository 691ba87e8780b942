"""Areas, curves and rank correlation against hand-computed numbers and slow definitions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from referee.metrics import auroc, average_precision, pr_curve, roc_curve, spearman, voc
from referee.metrics.ranking import aurocs, average_precisions, ranks


@st.composite
def scored(draw: st.DrawFn, both: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Labels and scores with many ties."""
    labels = np.array(draw(st.lists(st.integers(0, 1), min_size=2, max_size=30)))
    if both:
        labels[:2] = 0, 1
    scores = np.array(draw(st.lists(st.integers(-3, 3), min_size=len(labels), max_size=len(labels)))) / 2
    return labels, scores


def pairs(labels: np.ndarray, scores: np.ndarray) -> float:
    """AUROC by its definition."""
    wins = [np.sign(a - b) / 2 + 0.5 for a in scores[labels == 1] for b in scores[labels == 0]]
    return float(np.mean(wins))


def test_areas_by_hand() -> None:
    labels, scores = np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.35, 0.8])
    assert auroc(labels, scores) == pytest.approx(0.75)  # 3 of 4 pairs are right
    assert average_precision(labels, scores) == pytest.approx((1 / 1 + 2 / 3) / 2)


def test_ties_count_half_and_cannot_be_ordered_to_ones_liking() -> None:
    labels = np.array([1, 0, 1, 0])
    assert auroc(labels, np.zeros(4)) == 0.5
    assert average_precision(labels, np.zeros(4)) == 0.5  # the base rate
    assert auroc(labels, np.array([2, 1, 1, 0])) == pytest.approx(3.5 / 4)


@given(scored())
def test_the_area_is_the_share_of_pairs(case: tuple[np.ndarray, np.ndarray]) -> None:
    labels, scores = case
    assert auroc(labels, scores) == pytest.approx(pairs(labels, scores))
    assert auroc(labels, -scores) == pytest.approx(1 - auroc(labels, scores))
    assert auroc(labels, np.exp(scores) - 7) == pytest.approx(auroc(labels, scores))
    order = np.random.default_rng(0).permutation(len(labels))
    assert auroc(labels[order], scores[order]) == pytest.approx(auroc(labels, scores))


@given(scored())
def test_curves_hold_their_areas(case: tuple[np.ndarray, np.ndarray]) -> None:
    labels, scores = case
    roc, pr = roc_curve(labels, scores), pr_curve(labels, scores)
    assert np.trapezoid(roc.y, roc.x) == pytest.approx(auroc(labels, scores))
    steps = np.diff(np.r_[0.0, pr.x])
    assert steps @ pr.y == pytest.approx(average_precision(labels, scores))
    for curve in (roc, pr):
        assert (np.diff(curve.x) >= 0).all() and (np.diff(curve.threshold) < 0).all()
    for x, y, threshold in zip(roc.x, roc.y, roc.threshold, strict=True):
        says = scores >= threshold
        assert (says[labels == 0].mean(), says[labels == 1].mean()) == pytest.approx((x, y))
    for x, y, threshold in zip(pr.x, pr.y, pr.threshold, strict=True):
        says = scores >= threshold
        assert (says[labels == 1].mean(), labels[says].mean()) == pytest.approx((x, y))


@given(scored(), st.integers(0, 100))
def test_whole_weights_are_copies_of_frames(case: tuple[np.ndarray, np.ndarray], seed: int) -> None:
    labels, scores = case
    weights = np.random.default_rng(seed).integers(0, 4, (3, len(labels)))
    weights[:, :2] += 1  # both classes stay
    for row, area, precision in zip(
        weights, aurocs(labels, scores, weights), average_precisions(labels, scores, weights), strict=True
    ):
        copied = np.repeat(labels, row), np.repeat(scores, row)
        assert area == pytest.approx(auroc(*copied))
        assert precision == pytest.approx(average_precision(*copied))


def test_one_class_has_no_area_and_no_curve() -> None:
    ones, scores = np.ones(3, int), np.arange(3.0)
    assert math.isnan(auroc(ones, scores)) and math.isnan(average_precision(1 - ones, scores))
    assert math.isnan(auroc(np.array([], int), np.array([])))
    with pytest.raises(ValueError, match="success and failure"):
        roc_curve(ones, scores)
    with pytest.raises(ValueError, match="needs success"):
        pr_curve(1 - ones, scores)


@pytest.mark.parametrize(
    ("labels", "scores", "said"),
    [([0, 1], [0.0], "do not fit"), ([0, 1], [0.0, math.nan], "NaN"), ([0, -1], [0.0, 1.0], "unlabelled")],
)
def test_bad_input_is_refused(labels: list[int], scores: list[float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        auroc(np.array(labels), np.array(scores))


def test_rank_correlation_by_hand() -> None:
    assert ranks(np.array([10, 20, 20, 5])).tolist() == [2, 3.5, 3.5, 1]
    # d = (0, 1, -1, 0): 1 - 6·2 / (4·15)
    assert spearman(np.array([1, 3, 2, 4]), np.arange(4)) == pytest.approx(0.8)
    # IQ against hours of television, the textbook example: -29/165
    quotient = np.array([106, 100, 86, 101, 99, 103, 97, 113, 112, 110])
    hours = np.array([7, 27, 2, 50, 28, 29, 20, 12, 6, 17])
    assert spearman(quotient, hours) == pytest.approx(-29 / 165)


def test_order_in_time() -> None:
    assert voc(np.array([-3.0, 0.1, 0.2, 9.0])) == 1.0
    assert voc(np.array([3.0, 2.0, 1.0])) == -1.0
    assert voc(np.zeros(5)) == 0.0  # a constant says nothing about order
    assert math.isnan(voc(np.zeros(1)))
    assert voc(np.array([0.0, 0.0, 1.0, 1.0])) == pytest.approx(2 / math.sqrt(5))


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30), st.integers(0, 100))
def test_correlation_is_symmetric_and_bounded(values: list[float], seed: int) -> None:
    a, b = np.array(values), np.random.default_rng(seed).integers(0, 5, len(values))
    assert -1 <= spearman(a, b) <= 1
    assert spearman(a, b) == pytest.approx(spearman(b, a)) == pytest.approx(-spearman(-a, b))
    with pytest.raises(ValueError, match="paired"):
        spearman(a, b[1:])
