"""Counter-based random numbers: reproducible, independent of company, and uniform."""

import numpy as np

from referee.sim.streams import Stream


def test_numbers_depend_on_seed_and_episode_only() -> None:
    alone = Stream(np.array([7]), np.array([3])).uniform(5)
    together = Stream(np.array([1, 7, 9]), np.array([0, 3, 8])).uniform(5)
    np.testing.assert_array_equal(alone[0], together[1])


def test_taking_in_pieces_is_taking_at_once() -> None:
    whole = Stream(np.arange(4), np.zeros(4)).uniform(6)
    pieces = Stream(np.arange(4), np.zeros(4))
    np.testing.assert_array_equal(whole, np.concatenate([pieces.uniform(2), pieces.uniform(4)], axis=1))


def test_values_are_pinned() -> None:
    """A change here changes every recorded experiment: do it knowingly."""
    first = Stream(np.array([0]), np.array([0])).uniform(2)[0]
    np.testing.assert_allclose(first, (0.5225540511444501, 0.2864190728595838), rtol=0, atol=1e-15)


def test_neighbouring_seeds_episodes_and_purposes_are_unrelated() -> None:
    n = 20_000
    streams = [
        Stream(np.arange(n), np.zeros(n)).uniform(1)[:, 0],
        Stream(np.arange(n), np.ones(n)).uniform(1)[:, 0],
        Stream(np.arange(n), np.zeros(n), purpose=1).uniform(1)[:, 0],
        Stream(np.arange(n) + 1, np.zeros(n)).uniform(2)[:, 1],
    ]
    correlations = np.corrcoef(streams) - np.eye(len(streams))
    assert np.abs(correlations).max() < 4 / np.sqrt(n)


def test_uniform_in_the_unit_interval() -> None:
    values = Stream(np.arange(1000), np.zeros(1000)).uniform(100)
    assert values.min() >= 0.0
    assert values.max() < 1.0
    counts, _ = np.histogram(values, bins=50, range=(0, 1))
    expected = values.size / 50
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 85.4  # 99.9 % quantile for 49 degrees of freedom


def test_between_fills_the_box() -> None:
    values = Stream(np.arange(5000), np.zeros(5000)).between([0.4, -0.1], [0.6, 0.1])
    np.testing.assert_allclose(values.min(axis=0), [0.4, -0.1], atol=1e-3)
    np.testing.assert_allclose(values.max(axis=0), [0.6, 0.1], atol=1e-3)
