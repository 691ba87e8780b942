"""Training and validation apart: by episode, or by stretches of a single long one, and never with a leak."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from referee.errors import RefereeError

GAP = 5
"""Frames left out on either side of the validation stretch of a single episode: neighbours look alike."""


@dataclass(frozen=True, eq=False)
class Piece:
    """A stretch of an episode, or all of it: frames [start, stop) with what a split must know about them."""

    episode: str
    labels: np.ndarray
    """int8[stop - start]: 1 success, 0 failure, -1 not used."""
    hashes: np.ndarray
    """uint64[stop - start], see `frame_hashes`; empty where there are no images."""
    start: int = 0

    @property
    def stop(self) -> int:
        """One behind the last frame."""
        return self.start + len(self.labels)

    def part(self, start: int, stop: int) -> Piece:
        """A part of a whole episode."""
        return Piece(self.episode, self.labels[start:stop], self.hashes[start:stop], start)


@dataclass(frozen=True, eq=False)
class Split:
    """The two sides, each in the order of its episodes' ids."""

    train: tuple[Piece, ...]
    val: tuple[Piece, ...]


def split(
    episodes: Iterable[Piece],
    *,
    val_split: float,
    seed: int,
    gap: int = GAP,
    words: tuple[str, str] = ("success frame", "failure frame"),
    stretches: bool = False,
    without: str = "",
) -> Split:
    """A split that depends on the ids and the seed only; both sides hold success and failure, or it is refused.

    Episodes with success, without, and with success only are shared out alike. Copies of an episode, under whatever
    ids, go to one side. A single episode is cut: its validation
    side is the stretch whose share of success is most like the whole, with `gap` frames left out around it.
    stretches: several episodes are cut like one where they cannot be shared out with both kinds on both sides.
    without: how one goes without validation, for the refusal; then `val_split` may be 0, and all is for training.
    """
    found = sorted(episodes, key=lambda piece: piece.episode)
    if not 0 <= val_split < 1 or not (val_split or without):
        raise RefereeError(f"val_split is {val_split}, but both sides need a share: choose one between 0 and 1")
    twice = [a.episode for a, b in itertools.pairwise(found) if a.episode == b.episode]
    if twice:
        raise RefereeError(f"episode {twice[0]} is there twice: give each its own id")
    found = [piece for piece in found if (piece.labels >= 0).any()]
    _refuse_one_sided("the data", found, words)
    if not val_split:
        return Split(tuple(found), ())
    if len(found) == 1:
        result = _cut(found, val_split, seed, gap, without)
    else:
        groups = copies(found)
        if len(groups) == 1:
            raise RefereeError(f"all {len(found)} episodes show the same frames: one of them is all there is to learn")
        val = _choose(groups, val_split, seed)
        result = Split(
            tuple(piece for piece in found if piece.episode not in val),
            tuple(piece for piece in found if piece.episode in val),
        )
        if stretches and not (_two_sided(result.train) and _two_sided(result.val)):
            result = _cut(found, val_split, seed, gap, without)
    for name, side in (("training", result.train), ("validation", result.val)):
        _refuse_one_sided(f"the {name} side of {len(found)} episode{'s' * (len(found) > 1)}", side, words, without)
    assert_no_leak(result.train, result.val)
    return result


def copies(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """The pieces in groups of those that show the same frames, as `assert_no_leak` compares them."""
    different = [np.unique(piece.hashes) for piece in pieces]
    places: dict[int, list[int]] = {}
    leader = list(range(len(pieces)))
    for index, values in enumerate(different):
        shared = Counter(other for value in values for other in places.get(int(value), ()))
        for value in values:
            places.setdefault(int(value), []).append(index)
        for other, count in shared.items():
            if count > max(1, min(len(values), len(different[other])) / 2) and leader[index] != leader[other]:
                first, second = sorted((leader[index], leader[other]))
                leader = [first if each == second else each for each in leader]
    groups: dict[int, list[Piece]] = {}
    for index, piece in enumerate(pieces):
        groups.setdefault(leader[index], []).append(piece)
    return list(groups.values())


def assert_no_leak(train: Sequence[Piece], val: Sequence[Piece]) -> None:
    """Refuse the same frames on both sides, by their episode and by their content.

    A few equal frames are normal: resets look alike. A piece is a copy when more than half of its different frames,
    and more than one, are found in a single piece of the other side.
    """
    stretches: dict[str, list[Piece]] = {}
    places: dict[int, list[int]] = {}
    for index, piece in enumerate(train):
        stretches.setdefault(piece.episode, []).append(piece)
        for value in np.unique(piece.hashes):
            places.setdefault(int(value), []).append(index)
    for piece in val:
        for other in stretches.get(piece.episode, ()):
            if piece.start < other.stop and other.start < piece.stop:
                raise RefereeError(f"frames of episode {piece.episode} are on both sides of the split")
        different = np.unique(piece.hashes)
        shared = np.zeros(len(train), int)
        for value in different:
            shared[places.get(int(value), [])] += 1
        if len(train) and shared.max() > max(1, len(different) / 2):
            copy = train[int(shared.argmax())].episode
            raise RefereeError(
                f"{shared.max()} of {len(different)} frames of episode {piece.episode} (validation) are also in "
                f"{copy} (training): remove one of the two"
            )


def frame_hashes(images: np.ndarray) -> np.ndarray:
    """uint64[n] of images [n, ...]: equal for equal frames."""
    digests = (hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=8).digest() for image in images)
    return np.frombuffer(b"".join(digests), np.uint64)


def sample_evenly(count: int, wanted: int) -> np.ndarray:
    """int[k]: places in range(count), evenly spaced with the last one kept; all of them for 0 or too many."""
    if wanted <= 0 or wanted >= count:
        return np.arange(count)
    if wanted == 1:
        return np.array([count - 1])
    gaps = wanted - 1
    return (2 * np.arange(wanted) * (count - 1) + gaps) // (2 * gaps)


def order_key(seed: int, name: str) -> int:
    """A number that looks random, but only depends on the seed and the name."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "big")


def _kind(piece: Piece) -> tuple[bool, bool]:
    return bool((piece.labels == 1).any()), bool((piece.labels == 0).any())


def _two_sided(pieces: Sequence[Piece]) -> bool:
    return all(any(_kind(piece)[index] for piece in pieces) for index in (0, 1))


def _refuse_one_sided(name: str, pieces: Sequence[Piece], words: tuple[str, str], without: str = "") -> None:
    kinds = [_kind(piece) for piece in pieces]
    for index, word in enumerate(words):
        if not any(kind[index] for kind in kinds):
            more = f", or {without}" if without else ""
            raise RefereeError(f"{name} has no {word}: record or label more, or take more samples per episode{more}")


def _choose(groups: Sequence[Sequence[Piece]], val_split: float, seed: int) -> set[str]:
    """The ids of the validation episodes; what is in one group stays together."""
    found = {group[0].episode: group for group in groups}
    kind_of = {
        name: (any(_kind(each)[0] for each in group), any(_kind(each)[1] for each in group))
        for name, group in found.items()
    }
    shuffled = sorted(found, key=lambda name: order_key(seed, name))
    kinds: dict[tuple[bool, bool], list[str]] = {}
    for name in shuffled:
        kinds.setdefault(kind_of[name], []).append(name)
    # The place of an episode among its kind, in 0..1: in this order each kind comes in equal shares.
    place = {name: (rank + 0.5) / len(kind) for kind in kinds.values() for rank, name in enumerate(kind)}
    ordered = sorted(shuffled, key=lambda name: place[name])
    count = sum(map(len, groups))
    quota = min(max(1, round(val_split * count)), count - 1)
    left = [sum(kind[index] for kind in kind_of.values()) for index in (0, 1)]
    val: dict[str, tuple[bool, bool]] = {}

    def take(name: str) -> bool:
        """Move it to validation, unless training would be left without success or without failure."""
        kind = kind_of[name]
        if name in val or any(left[index] <= kind[index] for index in (0, 1)):
            return False
        val[name] = kind
        for index in (0, 1):
            left[index] -= kind[index]
        return True

    for index in (0, 1):  # first one with success and one with failure, whatever the quota
        if not any(kind[index] for kind in val.values()):
            any(take(name) for name in ordered if kind_of[name][index])
    for name in ordered:
        if sum(len(found[each]) for each in val) + len(found[name]) <= quota:
            take(name)
    return {piece.episode for name in val for piece in found[name]}


def _cut(pieces: Sequence[Piece], val_split: float, seed: int, gap: int, without: str) -> Split:
    """Whole episodes in two: one stretch over all of them for validation, the rest but the gaps for training."""
    labels = np.concatenate([piece.labels for piece in pieces])
    name, count = pieces[0].episode, len(labels)
    length = max(1, round(val_split * count))
    success, known = labels == 1, labels >= 0
    share = success.sum() / known.sum()
    best: tuple[float, int, int] | None = None
    for start in range(count - length + 1):
        inside = slice(start, start + length)
        before, after = slice(0, max(0, start - gap)), slice(start + length + gap, count)
        wins, all = success[inside].sum(), known[inside].sum()
        outside_wins = success[before].sum() + success[after].sum()
        outside = known[before].sum() + known[after].sum()
        if 0 < wins < all and 0 < outside_wins < outside:
            rank = (abs(float(wins / all - share)), order_key(seed, f"{name}:{start}"), start)
            best = rank if best is None or rank < best else best
    if best is None:
        only = f"episode {name} is the only one, and" if len(pieces) == 1 else f"of {len(pieces)} episodes"
        its = "its " if len(pieces) == 1 else ""
        raise RefereeError(
            f"{only} no stretch of {length} of {its}{count} frames leaves success and failure on both sides "
            f"(gap {gap}): record or label more, or {without or 'change val_split'}"
        )
    start, stop = best[2], best[2] + length
    return Split(
        (*_within(pieces, 0, max(0, start - gap)), *_within(pieces, min(count, stop + gap), count)),
        _within(pieces, start, stop),
    )


def _within(pieces: Sequence[Piece], start: int, stop: int) -> tuple[Piece, ...]:
    """What lies in [start, stop) of the frames of all episodes, in their order."""
    found, offset = [], 0
    for piece in pieces:
        first, last = max(0, start - offset), min(len(piece.labels), stop - offset)
        if first < last:
            found.append(piece.part(first, last))
        offset += len(piece.labels)
    return tuple(found)
