"""What training frames looked like, in a few bytes each: to recognise them under whatever name they come back.

Two kinds of evidence, both of the model's first camera:

    equal pixels      a hash of 64 bits of each frame. An episode was trained on when more than half of its different
                      frames are training frames, or more than half of those of one training episode are in it; and
                      three at least, because reset states can look alike.
    alike pictures    some frames of each episode, in grey and 16 × 16: what re-encoding and resizing leave. That is a
                      hint, not a proof. Crops, mirrored pictures and other brightness are not recognised.

Of very large data a part is kept: hashes that are a multiple of a power of two, thumbnails of some episodes.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from PIL import Image

from referee.datasets.split import frame_hashes
from referee.errors import RefereeError

Match = Literal["equal", "alike", ""]
ENOUGH = 3
"""Different frames that must be found again."""
SIDE = 16
THUMBNAILS = 8
"""Of one episode; each differs clearly from those before it."""
APART = 24
"""Grey levels by which some place of a thumbnail differs from those before it."""
NEAR, FAR = 2.5, 12
"""Grey levels: the root mean square, and the largest difference, of two thumbnails of one frame."""
MAX_HASHES, MAX_EPISODES = 32768, 256
BLOCK = 512
"""Frames of one part at most: a file whose frames name no episodes is taken in parts."""


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """Of the frames of one side of a training."""

    hashes: np.ndarray
    """uint64[n], distinct within an episode."""
    owners: np.ndarray
    """int32[n]: which episode each is from."""
    thumbnails: np.ndarray
    """uint8[m,256]"""
    thumbnail_owners: np.ndarray
    """int32[m]"""
    sampling: int = 1
    """Only hashes that are a multiple of it are here."""

    @classmethod
    def of(cls, episodes: Iterable[np.ndarray]) -> Fingerprint:
        """Of pictures uint8[n,H,W,3], episode by episode."""
        hashes: list[np.ndarray] = []
        small: list[np.ndarray] = []
        for images in episodes:
            hashes.append(np.unique(frame_hashes(images)))
            small.append(_choose(images))
        sampling = 1
        while sum(int((each % sampling == 0).sum()) for each in hashes) > MAX_HASHES:
            sampling *= 2
        hashes = [each[each % sampling == 0] for each in hashes]
        some = set(np.linspace(0, len(small) - 1, min(MAX_EPISODES, len(small))).round().astype(int).tolist())
        small = [each if number in some else each[:0] for number, each in enumerate(small)]
        return cls(_joined(hashes, np.uint64), _owners(hashes), _joined(small, np.uint8), _owners(small), sampling)

    def match(self, images: np.ndarray) -> Match:
        """How an episode's pictures uint8[n,H,W,3] resemble those of the training."""
        return "equal" if self.holds(images) else "alike" if self._alike(images) else ""

    def holds(self, images: np.ndarray) -> bool:
        """Whether an episode's pictures uint8[n,H,W,3] are those of the training, to the last bit."""
        mine = np.unique(frame_hashes(images))
        mine = mine[mine % self.sampling == 0]
        shared = np.isin(self.hashes, mine)
        if len(np.unique(self.hashes[shared])) > max(ENOUGH - 1, len(mine) / 2):
            return True
        count = np.bincount(self.owners, minlength=1)
        there = np.bincount(self.owners[shared], minlength=len(count))
        return bool((there > np.maximum(ENOUGH - 1, count / 2)).any())

    def _alike(self, images: np.ndarray) -> bool:
        """Whether most of the thumbnails of a training episode, and enough of them, are found among the pictures."""
        if not len(self.thumbnails):
            return False
        mine = np.unique(thumbnails(images), axis=0).astype(np.float32)
        theirs = self.thumbnails.astype(np.float32)
        square = (mine**2).sum(1)[:, None] + (theirs**2).sum(1) - 2 * mine @ theirs.T
        near = np.zeros(len(theirs), bool)
        for row, column in np.argwhere(square < NEAR**2 * theirs.shape[1]):
            near[column] |= np.abs(mine[row] - theirs[column]).max() <= FAR
        count = np.bincount(self.thumbnail_owners)
        there = np.bincount(self.thumbnail_owners[near], minlength=len(count))
        return bool((there > np.maximum(ENOUGH - 1, count / 2)).any())

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` is the inverse."""
        steps = np.diff(self.thumbnails, axis=0, prepend=np.zeros_like(self.thumbnails[:1]))  # wraps around
        return {
            "sampling": self.sampling,
            "hashes": _packed(self.hashes.astype("<u8").tobytes()),
            "hashes_of_episode": np.bincount(self.owners).tolist(),
            "thumbnails": _packed(zlib.compress(steps.tobytes(), 9)),
            "thumbnails_of_episode": np.bincount(self.thumbnail_owners).tolist(),
        }

    @classmethod
    def from_json(cls, values: Any) -> Fingerprint:
        """RefereeError if it is none."""
        try:
            hashes = np.frombuffer(base64.b64decode(values["hashes"]), "<u8").astype(np.uint64)
            plain = zlib.decompressobj().decompress(base64.b64decode(values["thumbnails"]), MAX_EPISODES * 8 * SIDE**2)
            small = np.cumsum(np.frombuffer(plain, np.uint8).reshape(-1, SIDE**2), axis=0, dtype=np.uint8)
            counts = [np.array(values[f"{name}_of_episode"], int) for name in ("hashes", "thumbnails")]
            owners = [np.repeat(np.arange(len(each)), each).astype(np.int32) for each in counts]
            if (len(owners[0]), len(owners[1])) != (len(hashes), len(small)) or not values["sampling"] >= 1:
                raise ValueError("its counts do not fit")
            return cls(hashes, owners[0], small, owners[1], int(values["sampling"]))
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError, zlib.error) as error:
            raise RefereeError(f"provenance holds a fingerprint that is broken ({error})") from error


def of_artifact(provenance: Mapping[str, Any], side: str = "train") -> Fingerprint | None:
    """What an artifact's provenance says of the frames it was trained or validated on; None where it says nothing."""
    found = provenance.get("fingerprint")
    values = found.get(side) if isinstance(found, Mapping) else None
    return None if values is None else Fingerprint.from_json(values)


def thumbnails(images: np.ndarray) -> np.ndarray:
    """uint8[n,256] of pictures [n,H,W,3]."""
    small = [
        Image.fromarray(image).convert("L").resize((SIDE, SIDE), Image.Resampling.BOX) for image in np.asarray(images)
    ]
    return np.stack([np.asarray(each, np.uint8).reshape(-1) for each in small])


def _choose(images: np.ndarray) -> np.ndarray:
    """uint8[k,256]: thumbnails of an episode that differ clearly from each other, spread over all of it."""
    some = thumbnails(images[np.unique(np.linspace(0, len(images) - 1, 4 * THUMBNAILS).round().astype(int))])
    kept: list[np.ndarray] = []
    for each in some:
        if all(np.abs(each.astype(int) - other).max() >= APART for other in kept):
            kept.append(each)
    places = np.unique(np.linspace(0, len(kept) - 1, THUMBNAILS).round().astype(int))
    return np.stack([kept[place] for place in places])


def _joined(parts: list[np.ndarray], dtype: Any) -> np.ndarray:
    width = (0, SIDE**2) if dtype is np.uint8 else (0,)
    return np.concatenate([np.zeros(width, dtype), *parts])


def _owners(parts: list[np.ndarray]) -> np.ndarray:
    return np.repeat(np.arange(len(parts)), [len(each) for each in parts]).astype(np.int32)


def _packed(data: bytes) -> str:
    return base64.b64encode(data).decode()
