"""`.npy` trajectories: `positive/000000.npy`, `negative/000000.npy`, …

Each holds one dict `{'images': {camera: f32[N,3,H,W] in 0..1}, 'labels': f32[N]}`: frames, and which are a success.
Nothing is said about actions or rewards (see `aligned`). A trajectory is positive if any of its frames is a success.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from referee.episodes.episode import HELD, Episode, EpisodeError, Meta
from referee.episodes.formats import aligned, numbered, observations
from referee.episodes.formats.episode_parts import Parts, load_episodes, parts_of
from referee.reading import parse

MAIN = "base_camera"
"""The name of the main camera where an episode has none."""
_NAME = r"(\d{6,12})\.npy"


def read(path: Path) -> Iterator[Episode]:
    """The episode in a file; or those of a folder, with or without `positive` and `negative` in it, by name."""
    if not path.is_dir():
        return read_files([path])
    folders = [path / name for name in ("positive", "negative") if (path / name).is_dir()] or [path]
    return read_files(each for folder in folders for each in sorted(folder.glob("*.npy")) if each.name[0] != ".")


def read_file(path: Path) -> Episode:
    """The episode in one file."""
    return next(read_files([path]))


def read_files(paths: Iterable[Path]) -> Iterator[Episode]:
    """The episodes in some files."""
    return load_episodes(f"{__name__}:parse_parts", paths)


def parse_parts(data: memoryview, path: Path) -> Iterator[Parts]:
    """The episode in the bytes of a file, as what it is made of."""
    value = parse.npy_value(data)
    if not isinstance(value, dict) or not isinstance(value.get("images"), dict) or "labels" not in value:
        raise EpisodeError("is no trajectory: it needs a dict of images and labels")
    frames = {str(camera): _frames(array, str(camera)) for camera, array in value["images"].items()}
    if not frames:
        raise EpisodeError("has no images")
    labels = observations.numbers(value["labels"], "labels").reshape(-1)
    for camera, array in frames.items():
        if len(array) != len(labels):
            raise EpisodeError(f"camera {camera} has {len(array)} frames, but there are {len(labels)} labels")
    observed = observations.Observed()
    observations.place(observed, frames)
    number = int(path.stem) if path.stem.isdecimal() and len(path.stem) < 13 else 0
    meta = Meta(source=str(path), cameras=observed.cameras, episode=number)
    return iter([parts_of(aligned.assemble(observed.arrays, meta, success=labels >= 0.5))])


class NpyWriter:
    """Writes trajectories, numbered on from those that are there. A limit counts those too."""

    def __init__(
        self,
        positive_dir: Path | str,
        negative_dir: Path | str,
        cameras: Sequence[str] | None = None,
        max_positive: int | None = None,
        max_negative: int | None = None,
    ) -> None:
        self.cameras = cameras
        self._folders = {True: Path(positive_dir), False: Path(negative_dir)}
        self._limits = {True: max_positive, False: max_negative}

    def append(self, episode: Episode) -> Path | None:
        """Keep an episode; returns its file once it is safe on disk, or None if there are enough of its kind."""
        if episode.success is None or episode.success_once is None:
            raise EpisodeError("a .npy trajectory needs labels, but nobody has said which frames are a success")
        kind = episode.success_once
        folder, limit = self._folders[kind], self._limits[kind]
        there = numbered.taken(folder, _NAME)
        if limit is not None and len(there) >= limit:
            return None
        moved = ~episode.signals.get(HELD, np.zeros(episode.states_count, bool))  # what nobody knows has no label here
        images = {camera: frames[moved] for camera, frames in _images(episode, self.cameras).items()}
        value = {"images": images, "labels": episode.success[moved].astype(np.float32)}
        names = (f"{number:06d}.npy" for number in itertools.count(there[-1] + 1 if there else 0))
        return numbered.write_new(folder, names, lambda path: _save(path, value))


def _save(path: Path, value: dict[str, object]) -> None:
    content = np.empty((), object)
    content[()] = value
    with path.open("wb") as file:
        np.save(file, content, allow_pickle=True)


def _images(episode: Episode, cameras: Sequence[str] | None) -> dict[str, np.ndarray]:
    """f32[N,3,H,W] by camera."""
    if "main_images" not in episode.observations:
        raise EpisodeError("a .npy trajectory needs images, but the episode has none: record cameras too")
    views = {"": episode.observations["main_images"]}
    extra = episode.observations.get("extra_view_images")
    if extra is not None:
        views |= {f"extra_view_{index}": extra[:, index] for index in range(extra.shape[1])}
    names = episode.meta.cameras or (MAIN, *list(views)[1:])
    named = dict(zip(names, views.values(), strict=True))
    if strange := [camera for camera in cameras or () if camera not in named]:
        raise EpisodeError(f"the episode has no camera {strange[0]}: it has {', '.join(named)}")
    chosen = {camera: named[camera] for camera in cameras} if cameras else named
    return {camera: _floats(images) for camera, images in chosen.items()}


def _floats(images: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(images, -1, 1)).astype(np.float32) / np.float32(255)


def _frames(value: object, camera: str) -> np.ndarray:
    """uint8[N,H,W,3] of the images of one camera."""
    if not isinstance(value, np.ndarray) or value.ndim != 4 or not value.size or value.shape[1] != 3:
        raise EpisodeError(f"the images of camera {camera} must be float32[N,3,H,W] in 0..1")
    return observations.stack_pictures(list(value), f"camera {camera}", channels_first=True)
