"""Splits: disjoint, the same in any order, both labels on both sides whenever that can be, and never leaking."""

import itertools
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from referee.datasets.split import Piece, assert_no_leak, frame_hashes, sample_evenly, split
from referee.errors import RefereeError

NONE = np.empty(0, np.uint64)


def piece(id: str, labels: str, hashes: list[int] | None = None) -> Piece:
    """Labels as text: 1, 0 and - for unknown."""
    values = np.array([{"1": 1, "0": 0, "-": -1}[each] for each in labels], np.int8)
    return Piece(id, values, NONE if hashes is None else np.array(hashes, np.uint64))


def ids(side: tuple[Piece, ...]) -> list[str]:
    return [each.episode for each in side]


kinds = st.lists(st.sampled_from(["01", "0", "1", "-"]), max_size=12)


@settings(max_examples=200)
@given(kinds=kinds, share=st.floats(0.05, 0.95), seed=st.integers(0, 5))
def test_both_sides_have_both_whenever_that_is_possible(kinds: list[str], share: float, seed: int) -> None:
    pieces = [piece(f"e{i}", kind) for i, kind in enumerate(kinds)]
    usable = [kind for kind in kinds if kind != "-"]

    def both(side: list[str]) -> bool:
        return {"0", "1"} <= set("".join(side))

    possible = any(
        both([k for k, b in zip(usable, bits, strict=True) if b])
        and both([k for k, b in zip(usable, bits, strict=True) if not b])
        for bits in itertools.product([0, 1], repeat=len(usable))
    )
    if not possible:
        with pytest.raises(RefereeError, match=r"has no (success|failure) frame|is the only one"):
            split(pieces, val_split=share, seed=seed)
        return
    found = split(pieces, val_split=share, seed=seed)
    assert set(ids(found.train)).isdisjoint(ids(found.val))
    assert sorted(ids(found.train) + ids(found.val)) == sorted(p.episode for p in pieces if (p.labels >= 0).any())
    for side in (found.train, found.val):
        values = np.concatenate([each.labels for each in side])
        assert {0, 1} <= set(values.tolist())
    shuffled = random.Random(seed).sample(pieces, len(pieces))
    again = split(shuffled, val_split=share, seed=seed)
    assert ids(again.train) == ids(found.train) and ids(again.val) == ids(found.val)


def test_kinds_are_shared_out_alike() -> None:
    pieces = [piece(f"a{i}", "001") for i in range(50)] + [piece(f"b{i}", "000") for i in range(150)]
    sizes, sides = [], set()
    for seed in range(5):
        val = ids(split(pieces, val_split=0.2, seed=seed).val)
        sizes.append((sum(id[0] == "a" for id in val), sum(id[0] == "b" for id in val)))
        sides.add(tuple(val))
    assert sizes == [(10, 30)] * 5
    assert len(sides) == 5  # the seed matters


def test_each_episode_is_chosen_as_often() -> None:
    pieces = [piece(f"e{i}", "01") for i in range(10)]
    chosen = [id for seed in range(500) for id in ids(split(pieces, val_split=0.3, seed=seed).val)]
    counts = [chosen.count(f"e{i}") for i in range(10)]
    assert sum(counts) == 1500 and min(counts) > 110 and max(counts) < 190  # 150 each; σ = 10


def test_what_cannot_be_split_is_refused_with_the_reason() -> None:
    for share in (0.0, 1.0):
        with pytest.raises(RefereeError, match="val_split"):
            split([piece("a", "01"), piece("b", "01")], val_split=share, seed=0)
    with pytest.raises(RefereeError, match="the data has no success frame"):
        split([piece("a", "00"), piece("b", "0-")], val_split=0.5, seed=0)
    with pytest.raises(RefereeError, match="the data has no failure frame"):
        split([piece("a", "11"), piece("b", "11")], val_split=0.5, seed=0)
    with pytest.raises(RefereeError, match="validation side of 3 episodes has no success frame"):
        split([piece("a", "01"), piece("b", "00"), piece("c", "00")], val_split=0.3, seed=0)
    with pytest.raises(RefereeError, match="episode a is there twice"):
        split([piece("a", "01"), piece("a", "01")], val_split=0.5, seed=0)


def test_a_failing_split_says_how_to_go_without() -> None:
    few = [piece("a", "01"), piece("b", "00"), piece("c", "00")]
    with pytest.raises(RefereeError, match=r"samples per episode, or do without$"):
        split(few, val_split=0.3, seed=0, without="do without")
    with pytest.raises(RefereeError, match=r"label more, or do without$"):
        split([piece("a", "01")], val_split=0.3, seed=0, without="do without")
    found = split(few, val_split=0, seed=0, without="do without")
    assert (ids(found.train), ids(found.val)) == (["a", "b", "c"], [])
    with pytest.raises(RefereeError, match=r"the data has no success frame: [^,]*, or take more samples per episode$"):
        split(few[1:], val_split=0, seed=0, without="do without")


def test_one_long_episode_is_cut_with_a_gap() -> None:
    labels = "0000011111" * 10
    found = split([piece("long", labels)], val_split=0.2, seed=1, gap=3)
    (val,) = found.val
    assert val.stop - val.start == 20 and (val.labels == 1).sum() == 10  # as in the whole
    frames = [frame for part in found.train for frame in range(part.start, part.stop)]
    assert not set(frames) & set(range(val.start - 3, val.stop + 3))
    assert len(frames) == 100 - len(set(range(val.start - 3, val.stop + 3)) & set(range(100)))
    for part in (*found.train, val):
        assert part.labels.tolist() == [int(each) for each in labels[part.start : part.stop]]
    assert ids(found.val) == ["long"]


def test_one_episode_that_ends_in_success() -> None:
    found = split([piece("long", "0" * 60 + "1" * 40)], val_split=0.2, seed=0, gap=5)
    (val,) = found.val
    assert (val.start, val.stop) == (48, 68)  # 12 failures and 8 successes: 40 %, as in the whole
    assert [(part.start, part.stop) for part in found.train] == [(0, 43), (73, 100)]
    with pytest.raises(RefereeError, match="episode long is the only one"):
        split([piece("long", "0" * 95 + "1" * 5)], val_split=0.2, seed=0, gap=5)


def test_the_same_frames_on_both_sides_are_refused() -> None:
    whole = piece("e", "0" * 10)
    assert_no_leak([whole.part(0, 4)], [whole.part(4, 10)])
    with pytest.raises(RefereeError, match="frames of episode e are on both sides"):
        assert_no_leak([whole.part(0, 5)], [whole.part(4, 10)])


@pytest.mark.parametrize(
    ("train", "val", "leaks"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], True),
        ([1, 2, 3, 4], [1, 5, 6, 7], False),  # the same reset
        ([1, 2, 3, 4], [1, 2, 5, 6], False),  # half
        ([1, 2, 3, 4], [9, 3, 2, 1], True),  # most of it, in another order
        ([7, 7, 7, 7], [7, 7, 7, 7], False),  # a dark camera says nothing about copies
        ([1, 1, 1, 2], [1, 1, 1, 5], False),  # both wait at the reset
        ([], [], False),
    ],
)
def test_copies_are_found_by_their_content(train: list[int], val: list[int], leaks: bool) -> None:
    other = piece("other", "0000", [101, 102, 103, 104])
    sides = [other, Piece("a", np.zeros(4, np.int8), np.array(train, np.uint64))]
    copy = Piece("b", np.zeros(4, np.int8), np.array(val, np.uint64))
    if not leaks:
        assert_no_leak(sides, [copy])
        return
    with pytest.raises(RefereeError, match=r"frames of episode b \(validation\) are also in a \(training\)"):
        assert_no_leak(sides, [copy])


def test_copies_stay_on_one_side() -> None:
    """Under whatever ids, whole or half, and also where one copy leads to the next."""
    pieces = [piece(f"e{i}", "01", [10 * i, 10 * i + 1]) for i in range(4)]
    pieces += [piece("copy", "01", [0, 1]), piece("half", "0111", [10, 11, 98, 99]), piece("again", "01", [98, 99])]
    sides = set()
    for seed in range(40):
        found = split(pieces, val_split=0.4, seed=seed)
        val = ids(found.val)
        assert ("e0" in val) == ("copy" in val)
        assert ("e1" in val) == ("half" in val) == ("again" in val)
        sides |= {("e0" in val, "e1" in val)}
    assert {(True, False), (False, True)} <= sides and (True, True) not in sides  # that would be five of seven


def test_copies_of_one_episode_are_no_data() -> None:
    same = [piece(name, "0011", [1, 2, 3, 4]) for name in "abc"]
    with pytest.raises(RefereeError, match="all 3 episodes show the same frames"):
        split(same, val_split=0.3, seed=0)


def test_frames_are_equal_by_their_bytes() -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 3), dtype=np.uint8)
    images[3] = images[0]
    hashes = frame_hashes(images)
    assert hashes.dtype == np.uint64 and hashes[3] == hashes[0] and len(set(hashes.tolist())) == 5
    np.testing.assert_array_equal(frame_hashes(images[::2]), hashes[::2])
    views = np.stack([images, images], axis=1)
    np.testing.assert_array_equal(frame_hashes(views[:, 1]), hashes)


def test_evenly_spaced_by_hand() -> None:
    assert sample_evenly(11, 3).tolist() == [0, 5, 10]
    assert sample_evenly(51, 6).tolist() == [0, 10, 20, 30, 40, 50]
    assert sample_evenly(10, 4).tolist() == [0, 3, 6, 9]
    assert sample_evenly(8, 3).tolist() == [0, 4, 7]  # 3.5 goes up
    assert sample_evenly(5, 1).tolist() == [4]
    assert sample_evenly(3, 0).tolist() == sample_evenly(3, 9).tolist() == [0, 1, 2]
    assert sample_evenly(0, 2).tolist() == []


@given(count=st.integers(1, 200), wanted=st.integers(1, 200))
def test_samples_are_even_and_keep_the_last(count: int, wanted: int) -> None:
    places = sample_evenly(count, wanted).tolist()
    assert len(places) == min(count, wanted) and places[-1] == count - 1
    assert places == sorted(set(places))
    if 1 < wanted <= count:
        exact = [Fraction(i * (count - 1), wanted - 1) for i in range(wanted)]
        assert all(abs(place - wish) <= Fraction(1, 2) for place, wish in zip(places, exact, strict=True))


def test_few_episodes_are_cut_like_one_where_they_cannot_be_shared_out() -> None:
    good, mixed = np.ones(20, np.int8), np.tile(np.array([0, 1], np.int8), 20)
    pieces = [Piece("a", good, np.arange(20, dtype=np.uint64)), Piece("b", mixed, np.arange(20, 60, dtype=np.uint64))]
    with pytest.raises(RefereeError, match="has no failure frame"):
        split(pieces, val_split=0.25, seed=0)
    found = split(pieces, val_split=0.25, seed=0, stretches=True)
    val = [("ab".index(each.episode) * 20 + frame) for each in found.val for frame in range(each.start, each.stop)]
    train = [("ab".index(each.episode) * 20 + frame) for each in found.train for frame in range(each.start, each.stop)]
    assert len(val) == 15 and val == list(range(val[0], val[0] + 15))
    assert len(train) == 60 - 15 - 2 * 5 and min(abs(a - b) for a in train for b in val) == 6
    shared = [Piece(name, mixed, np.arange(i, i + 40, dtype=np.uint64)) for i, name in ((0, "a"), (100, "b"))]
    assert [each.episode for each in split(shared, val_split=0.25, seed=0, stretches=True).val] in (["a"], ["b"])
