"""Intervals over episodes: exact where they can be, and with the coverage that they claim."""

import math

import numpy as np
import pytest

from referee.metrics import Estimate, bootstrap
from referee.metrics.intervals import auroc_interval, by_episode, episode_draws, percentile_interval, weighted_quantile
from referee.metrics.ranking import aurocs


def test_draws_are_seeded_and_keep_their_number() -> None:
    a = episode_draws(7, draws=50, seed=3)
    assert a.shape == (50, 7) and (a.sum(axis=1) == 7).all()
    assert (a == episode_draws(7, draws=50, seed=3)).all() and (a != episode_draws(7, draws=50, seed=4)).any()
    with pytest.raises(ValueError, match="cannot be"):
        episode_draws(0)


def test_a_draw_is_the_statistic_of_the_drawn_episodes() -> None:
    random = np.random.default_rng(0)
    episode = np.repeat(np.arange(6), [3, 9, 4, 4, 8, 2])
    labels, scores = random.integers(0, 2, 30), random.normal(size=30)
    draws = episode_draws(6, draws=20, seed=1)
    found = by_episode(lambda w: aurocs(labels, scores, w), draws, episode)
    for draw, value in zip(draws, found, strict=True):
        rows = np.concatenate([np.flatnonzero(episode == e) for e in range(6) for _ in range(draw[e])])
        again = aurocs(labels[rows], scores[rows], np.ones((1, len(rows))))[0]
        assert value == pytest.approx(again, nan_ok=True)


def test_chunks_do_not_change_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    episode = np.repeat(np.arange(10), 5)
    values = np.random.default_rng(0).normal(size=50)

    def mean(weights: np.ndarray) -> np.ndarray:
        return weights @ values / weights.sum(axis=1)

    whole = bootstrap(mean, episode, draws=100, seed=2)
    monkeypatch.setattr("referee.metrics.intervals._CELLS", 120)
    assert bootstrap(mean, episode, draws=100, seed=2) == whole
    assert whole.value == pytest.approx(values.mean()) and whole.low < whole.value < whole.high


def test_copies_of_a_frame_do_not_narrow_the_interval() -> None:
    """Frames of an episode that are alike are one piece of evidence: the very mistake that this prevents."""
    one = np.random.default_rng(0).normal(size=40)
    many = np.repeat(one, 50)

    def mean_of(values: np.ndarray) -> object:
        return lambda weights: weights @ values / weights.sum(axis=1)

    few = bootstrap(mean_of(one), np.arange(40), seed=5)  # type: ignore[arg-type]
    copies = bootstrap(mean_of(many), np.repeat(np.arange(40), 50), seed=5)  # type: ignore[arg-type]
    assert (copies.low, copies.high) == pytest.approx((few.low, few.high))
    frames = bootstrap(mean_of(many), np.arange(2000), seed=5)  # type: ignore[arg-type]
    assert frames.high - frames.low < 0.3 * (few.high - few.low)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    random, hits = np.random.default_rng(0), 0
    for seed in range(200):
        centre = np.repeat(random.normal(size=60), 5)
        values = centre + 0.3 * random.normal(size=300)
        found = bootstrap(lambda w, v=values: w @ v / w.sum(axis=1), np.repeat(np.arange(60), 5), draws=300, seed=seed)  # type: ignore[misc]
        hits += found.low <= 0 <= found.high
    assert 0.90 <= hits / 200 <= 0.98


def test_the_interval_of_an_auroc() -> None:
    low, high = auroc_interval(0.5, 4, 5)  # by chance its variance is that of Mann and Whitney: (n + m + 1) / 12nm
    assert (high - low) / 2 / 1.96 == pytest.approx(math.sqrt(10 / 240))
    low, high = auroc_interval(0.893, 51, 58)  # the example of Hanley and McNeil: a standard error of 0.0325
    assert (high - 0.893) / 1.96 == pytest.approx(0.0325, abs=5e-5) and 0.893 - low == pytest.approx(high - 0.893)
    assert auroc_interval(1.0, 3, 3) == (1.0, 1.0) and auroc_interval(0.7, 1, 1) == (0.0, 1.0)
    assert all(math.isnan(end) for end in (*auroc_interval(math.nan, 3, 3), *auroc_interval(0.7, 3, 0)))


def test_percentiles_leave_out_what_does_not_exist() -> None:
    assert percentile_interval(np.r_[np.nan, np.arange(101.0)], 0.9) == pytest.approx((5, 95))
    assert all(math.isnan(end) for end in percentile_interval(np.array([np.nan])))


def test_weighted_quantiles_are_those_of_copies() -> None:
    random = np.random.default_rng(0)
    values, weights = random.integers(0, 9, 15), random.integers(0, 3, (40, 15))
    for share in (0.5, 0.9):
        for row, found in zip(weights, weighted_quantile(values, weights, share), strict=True):
            assert found == np.quantile(np.repeat(values, row), share, method="inverted_cdf")
    assert np.isnan(weighted_quantile(values, np.zeros((1, 15)))).all()
    assert np.isnan(weighted_quantile(np.array([]), np.zeros((2, 0)))).all()


def test_an_estimate_reads_well() -> None:
    assert str(Estimate(0.98, 0.97, 0.991)) == "0.980 [0.970, 0.991]"
    assert str(Estimate(math.nan)) == "not measured"
