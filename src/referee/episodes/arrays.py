"""Episodes out of plain arrays: frames, a label for each, and which episode each belongs to."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from referee.episodes.episode import Episode, EpisodeError, Meta

Frames = np.ndarray | Mapping[str, np.ndarray]
"""uint8[N,H,W,3] of one camera, or {camera: uint8[N,H,W,3]}."""


def episodes_of(
    frames: Frames, labels: npt.ArrayLike | None = None, groups: npt.ArrayLike | None = None
) -> list[Episode]:
    """Episodes with the frames in the order in which they stand; they share memory with `frames` where they can.

    labels: 1 for success, 0 for failure, of each frame; None: the episodes are unlabelled.
    groups: the episode of each frame, numbers or names; None: all frames are one recording.

    An episode's id follows from its group and its content. The same number in another array is another episode.
    """
    views = views_of(frames)
    count = len(next(iter(views.values())))
    success = None if labels is None else _labels(labels, count)
    return [
        _episode(str(name), {camera: images[rows] for camera, images in views.items()}, None if success is None
                 else success[rows])
        for name, rows in _rows(groups, count)
    ]  # fmt: skip


def views_of(frames: Frames) -> dict[str, np.ndarray]:
    """{camera: uint8[N,H,W,3]}, checked."""
    named = frames if isinstance(frames, Mapping) else {"main_images": frames}
    views = {str(camera): np.asarray(images) for camera, images in named.items()}
    if not views:
        raise EpisodeError("frames name no camera: give {camera: uint8[N,H,W,3]}")
    for camera, images in views.items():
        if images.ndim != 4 or images.shape[-1] != 3 or images.dtype != np.uint8:
            raise EpisodeError(
                f"frames of {camera} are {images.dtype}{list(images.shape)}: give uint8[N,H,W,3], colours in 0..255"
            )
    shapes = {camera: images.shape for camera, images in views.items()}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{camera} {list(shape)}" for camera, shape in shapes.items())
        raise EpisodeError(f"cameras differ in frames or size ({listed}): give all of them the same shape")
    return views


def _labels(labels: npt.ArrayLike, count: int) -> np.ndarray:
    values = np.asarray(labels)
    if values.shape != (count,):
        raise EpisodeError(f"labels are {list(values.shape)} for {count} frames: give one label per frame")
    if not np.isin(values, (0, 1)).all():
        raise EpisodeError("labels hold more than 0 and 1: 1 is success, 0 is failure")
    return values.astype(bool)


def _rows(groups: npt.ArrayLike | None, count: int) -> list[tuple[object, slice | np.ndarray]]:
    """Each group with its rows, in the order of their first frames."""
    if groups is None:
        return [("frames", slice(0, count))]
    names = np.asarray(groups)
    if names.shape != (count,):
        raise EpisodeError(f"groups are {list(names.shape)} for {count} frames: give one episode per frame")
    _, first, which = np.unique(names, return_index=True, return_inverse=True)
    found: list[tuple[object, slice | np.ndarray]] = []
    for number in np.argsort(first):
        rows = np.flatnonzero(which == number)
        whole = rows[-1] - rows[0] + 1 == len(rows)
        found.append((names[rows[0]], slice(int(rows[0]), int(rows[-1]) + 1) if whole else rows))
    return found


def _episode(name: str, views: Mapping[str, np.ndarray], success: np.ndarray | None) -> Episode:
    images = list(views.values())
    steps = len(images[0]) - 1
    if steps < 1:
        raise EpisodeError(
            f"group {name} has {steps + 1} frame(s), but an episode has two or more: single pictures need no groups"
        )
    observations = {"main_images": images[0]}
    if len(images) > 1:
        observations["extra_view_images"] = np.stack(images[1:], axis=1)
    return Episode(
        observations,
        np.zeros((steps, 0), np.float32),
        np.zeros(steps, np.float32),
        np.zeros(steps, bool),
        np.arange(steps) == steps - 1,
        success,
        meta=Meta(id=f"{_plain(name)}-{_digest(images)}", source="arrays", cameras=tuple(views)),
    ).validate()


def _plain(name: str) -> str:
    """A name that can be part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:40].strip("_") or "episode"


def _digest(images: Sequence[np.ndarray]) -> str:
    content = hashlib.blake2b(digest_size=6)
    for each in images:
        content.update(np.ascontiguousarray(each).data)
    return content.hexdigest()
