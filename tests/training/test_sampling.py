"""Every frame is seen, both labels alike where that is wanted, and all of it depends on seed and epoch alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from referee.errors import RefereeError
from referee.training.sampling import Sampler


def flat(epoch: list[list[np.ndarray]]) -> np.ndarray:
    return np.concatenate([chunk for batch in epoch for chunk in batch])


@given(st.integers(8, 300), st.integers(4, 64), st.integers(1, 4), st.integers(0, 3))
def test_natural_sees_every_frame_once(count: int, batch_size: int, chunks: int, epoch: int) -> None:
    labels = np.arange(count) % 2
    if count // -(-count // batch_size) < chunks:
        return
    batches = Sampler(labels, batch_size, 1, balanced=False, chunks=chunks).epoch(epoch)
    assert sorted(flat(batches)) == list(range(count))
    sizes = [sum(map(len, batch)) for batch in batches]
    assert len(sizes) == -(-count // batch_size)
    assert max(sizes) <= batch_size and max(sizes) - min(sizes) <= 1
    assert all(len(batch) == chunks and min(map(len, batch)) >= 1 for batch in batches)


@given(st.integers(2, 30), st.integers(30, 200), st.integers(8, 32), st.integers(1, 2))
def test_balanced_has_both_labels_alike(wins: int, fails: int, batch_size: int, chunks: int) -> None:
    labels = np.r_[np.ones(wins, int), np.zeros(fails, int)]
    sampler = Sampler(labels, batch_size, 3, balanced=True, chunks=chunks)
    for batch in sampler.epoch(0):
        for chunk in batch:
            assert 2 * labels[chunk].sum() == len(chunk) > 0
        assert sum(map(len, batch)) <= batch_size
    drawn = flat(sampler.epoch(0))
    assert len(drawn) in (len(labels), len(labels) + 1)
    counts = np.bincount(drawn, minlength=len(labels))[:wins]
    assert counts.max() - counts.min() <= 1  # the rare label comes round evenly


def test_balanced_sees_every_failure_in_time() -> None:
    labels = np.r_[np.ones(10, int), np.zeros(90, int)]
    sampler = Sampler(labels, 20, 0)
    seen = {int(i) for epoch in range(2) for i in flat(sampler.epoch(epoch))}
    assert seen == set(range(100))  # 50 failures per epoch: all of them within two, none twice before that
    failures = np.concatenate([flat(sampler.epoch(epoch)) for epoch in range(2)])
    assert np.bincount(failures[failures >= 10], minlength=100)[10:].max() == 2 and len(failures) == 200


@pytest.mark.parametrize("balanced", [True, False])
def test_depends_on_seed_and_epoch_alone(balanced: bool) -> None:
    labels = np.arange(40) % 4 == 0
    first = Sampler(labels.astype(int), 8, 5, balanced)
    again = Sampler(labels.astype(int), 8, 5, balanced)
    np.testing.assert_array_equal(flat(first.epoch(2)), flat(again.epoch(2)))
    assert (flat(first.epoch(2)) != flat(first.epoch(3))).any()
    assert (flat(first.epoch(2)) != flat(Sampler(labels.astype(int), 8, 6, balanced).epoch(2))).any()


def test_refusals() -> None:
    with pytest.raises(RefereeError, match="both labels"):
        Sampler(np.ones(10, int), 4, 0)
    with pytest.raises(RefereeError, match="too few for 8 micro-batches"):
        Sampler(np.arange(6) % 2, 8, 0, balanced=False, chunks=8)


@pytest.mark.parametrize(
    ("wins", "fails", "count", "chosen"),
    [(50, 200, 40, 20), (5, 200, 40, 5), (200, 4, 40, 36), (10, 10, 100, 10), (0, 30, 10, 0), (30, 0, 10, 10)],
)
def test_frames_evenly_of_both_labels(wins: int, fails: int, count: int, chosen: int) -> None:
    from referee.training.sampling import evenly

    labels = np.r_[np.ones(wins, int), np.zeros(fails, int)]
    rows = evenly(labels, count)
    assert len(rows) == len(set(rows.tolist())) == min(count, wins + fails) and labels[rows].sum() == chosen
