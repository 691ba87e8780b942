"""Frames to learn from, out of every form in which people have them; what cannot be learned from is refused here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from referee.config.datasets import DataConfig
from referee.datasets import npy
from referee.datasets.fingerprint import BLOCK, Fingerprint
from referee.datasets.frames import build_frames
from referee.datasets.payload import RewardBinaryDataset
from referee.datasets.source import left_out
from referee.episodes import Episode, EpisodeStore
from referee.episodes.formats.detect import read_any
from referee.episodes.health import ADVICE, blank_fault
from referee.errors import RefereeError
from referee.models.spec import MAIN_NAMES
from referee.training.features import content_hash

Say = Callable[[str], None]
_log = logging.getLogger(__name__)
LOOKED_AT = 64
"""Frames of a file whose pictures are looked at."""


def check_source(data: DataConfig) -> None:
    """Refuse data that are given twice, or not at all."""
    if (data.positive_dir is None) != (data.negative_dir is None):
        raise RefereeError("positive_dir and negative_dir: give both, or none")
    given = [data.data_path is not None, bool(data.train_data_paths), data.positive_dir is not None]
    if sum(given) != 1:
        raise RefereeError(
            "what to learn from must be given once: data_path, train_data_paths, or positive_dir and negative_dir"
        )
    if data.val_data_paths and not data.train_data_paths:
        raise RefereeError("val_data_paths needs train_data_paths beside it")


class FrameSet:
    """Frames of one or more .pt files, with the views that a model looks at."""

    def __init__(self, paths: Sequence[Path], cameras: tuple[str, ...] = ()) -> None:
        self.parts = [RewardBinaryDataset(path) for path in paths]
        names = [_cameras(part) for part in self.parts]
        self.cameras = tuple(_own_name(camera, names[0]) for camera in cameras or names[0])
        self._views = [_places(self.cameras, mine, part.path) for mine, part in zip(names, self.parts, strict=True)]
        sizes = [part.sample_shape[-3:-1] for part in self.parts]
        for part, size in zip(self.parts, sizes, strict=True):
            if size != sizes[0]:
                raise RefereeError(
                    f"{part.path} has images of {size[1]}x{size[0]} px, {self.parts[0].path} of "
                    f"{sizes[0][1]}x{sizes[0][0]}: build both with the same size"
                )
        self.size = sizes[0]
        """Height and width."""
        self.labels = torch.cat([part.labels for part in self.parts])
        self._ends = np.cumsum([len(part) for part in self.parts])
        self._whole = len(self.parts) == 1 and self._views[0] == tuple(range(len(names[0])))

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Any) -> tuple[Tensor, Tensor]:
        """Images uint8[n,H,W,3], or uint8[n,V,H,W,3] of several cameras, and labels int64[n]."""
        if self._whole:
            return self.parts[0].batch(indices)
        chosen = np.asarray(indices)
        owner = np.searchsorted(self._ends, chosen, side="right")
        images = torch.empty((len(chosen), len(self.cameras), *self.size, 3), dtype=torch.uint8)
        for number, (part, views) in enumerate(zip(self.parts, self._views, strict=True)):
            mine = np.flatnonzero(owner == number)
            if len(mine):
                found, _ = part.batch(chosen[mine] - (self._ends[number] - len(part)))
                found = found if found.ndim == 5 else found[:, None]
                images[torch.from_numpy(mine)] = found[:, list(views)]
        return (images[:, 0] if len(self.cameras) == 1 else images), self.labels[torch.from_numpy(chosen)]

    @property
    def content_hash(self) -> str:
        """Of what the files hold, and of the views that are looked at."""
        hashes = [content_hash(part) for part in self.parts]
        return hashes[0] if self._whole else " ".join([*hashes, *self.cameras])

    def episodes(self) -> list[str]:
        """Ids of the episodes, where the files name them."""
        return sorted({str(id) for part in self.parts for id in part.metadata.get("episodes", ())})

    def tasks(self) -> list[str]:
        """What was to be done in them, in words, where the files say it."""
        return sorted({str(task) for part in self.parts for task in part.metadata.get("tasks", ())})

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """What the frames look like to the first camera; all of them are read once."""
        return Fingerprint.of(images for _, images in self.by_episode())

    def by_episode(self) -> Iterator[tuple[str, np.ndarray]]:
        """Id and pictures uint8[n,H,W,3] of the first camera, of each episode in turn, a long one in parts."""
        rows: dict[str, list[int]] = {}
        for row, (episode, _) in enumerate(self.places()):
            rows.setdefault(episode, []).append(row)
        for episode, mine in rows.items():
            for start in range(0, len(mine), BLOCK):
                images = self.batch(mine[start : start + BLOCK])[0].numpy()
                yield episode, images if images.ndim == 4 else images[:, 0]

    def places(self) -> list[tuple[str, int]]:
        """Episode and frame of each sample; the file's name and a number where a file does not say it."""
        found: list[tuple[str, int]] = []
        for part in self.parts:
            known = {"episodes", "episode_of_sample", "frame_of_sample"} <= part.metadata.keys()
            if known:
                ids, owners, frames = (
                    part.metadata[name] for name in ("episodes", "episode_of_sample", "frame_of_sample")
                )
                found += [(str(ids[owner]), int(frame)) for owner, frame in zip(owners, frames, strict=True)]
            else:
                found += [(part.path.stem, number) for number in range(len(part))]
        return found


@dataclass(frozen=True)
class Data:
    """Both sides of a training."""

    train: FrameSet
    val: FrameSet | None

    def provenance(self) -> dict[str, Any]:
        """What an artifact says about its data."""
        sides = {"train": self.train, "val": self.val}
        there = {name: side for name, side in sides.items() if side is not None}
        return {
            "dataset": {name: side.content_hash for name, side in there.items()},
            "episodes": {name: side.episodes() for name, side in there.items()},
            "files": {name: [str(part.path.absolute()) for part in side.parts] for name, side in there.items()},
            "frames": {name: len(side) for name, side in there.items()},
            "tasks": self.train.tasks(),
            "fingerprint": {name: side.fingerprint.to_json() for name, side in there.items()},
            "picture_size": [int(side) for side in self.train.size],
        }


def open_data(config: DataConfig, folder: Path, say: Say | None = None) -> Data:
    """The frames to learn from; episodes are made into train.pt and val.pt in `folder` first.

    say: hears what was found, a line at a time.
    """
    say, cameras = say or (lambda line: None), config.cameras or ()
    check_source(config)
    train, val = _files(config, folder, say)
    built = folder / "train.pt" in train
    """From episodes, whose pictures were looked at then."""
    data = Data(FrameSet(train, cameras), FrameSet(val, cameras) if val else None)
    for name, side in (("training", data.train), ("validation", data.val)):
        if side is not None:
            _check(name, side)
            wins = int(side.labels.sum())
            say(f"{name}: {wins} success and {len(side) - wins} fail frames, cameras {', '.join(side.cameras)}")
            for line in () if built else _blank(name, side):
                say(f"warning: {line}")
    if data.val is not None:
        if data.val.cameras != data.train.cameras or data.val.size != data.train.size:
            raise RefereeError(
                f"{val[0]} has cameras {', '.join(data.val.cameras)} and images of {data.val.size[0]} px, {train[0]} "
                f"{', '.join(data.train.cameras)} and {data.train.size[0]} px: build both in one go"
            )
        _refuse_leak(data.train, data.val)
    return data


def _files(config: DataConfig, folder: Path, say: Say) -> tuple[list[Path], list[Path]]:
    """Files of frames, which may have to be built."""
    if config.train_data_paths:
        return list(map(Path, config.train_data_paths)), list(map(Path, config.val_data_paths or ()))
    source = None if config.data_path is None else Path(config.data_path)
    if source is not None and not source.exists():
        raise RefereeError(f"data_path {source} does not exist")
    if source is not None and source.is_file() and source.suffix in (".pt", ".pth"):
        return [source], [source.with_name("val.pt")] if source.name == "train.pt" else []
    if source is not None and (source / "train.pt").exists():
        return [source / "train.pt"], [source / "val.pt"] if (source / "val.pt").exists() else []
    return _build(config, folder, say)


def _build(config: DataConfig, folder: Path, say: Say) -> tuple[list[Path], list[Path]]:
    paths = folder / "train.pt", folder / "val.pt"
    episodes, name = _episodes(config, say)
    there = _all_cameras(episodes, name)
    cameras = tuple(
        "main_images" if each in MAIN_NAMES and each not in there else each for each in config.cameras or ()
    )
    _log.addHandler(logging.NullHandler())
    for line in str(build_frames(episodes, folder, config, cameras=cameras or there, name=name)).splitlines():
        say(line)
    return [paths[0]], [paths[1]] if config.val_split else []


def _episodes(config: DataConfig, say: Say) -> tuple[Any, str]:
    """Episodes that can be read again and again, and what to call them."""
    positive, negative, source = (
        None if path is None else Path(path) for path in (config.positive_dir, config.negative_dir, config.data_path)
    )
    if source is not None and (source / "positive").is_dir() and (source / "negative").is_dir():
        positive, negative = source / "positive", source / "negative"
    if positive is not None and negative is not None:
        for each in (positive, negative):
            if not each.is_dir():
                raise RefereeError(f"{each} is no folder of .npy trajectories")
        for counts in npy.expand(positive, negative)[1]:
            say(str(counts))
        return _Again(lambda: npy.read(positive, negative)), f"{positive}, {negative}"
    assert source is not None
    if (source / "episodes").is_dir():
        store = EpisodeStore(source, create=False)
        for line in left_out(store):
            say(f"warning: {line}")
        return store, str(source)
    return _Again(lambda: read_any(source)), str(source)


class _Again:
    """Episodes that are read anew at every pass."""

    def __init__(self, read: Callable[[], Iterator[Episode]]) -> None:
        self._read = read

    def __iter__(self) -> Iterator[Episode]:
        return self._read()


def _all_cameras(episodes: Any, name: str) -> tuple[str, ...]:
    first = next(iter(episodes), None)
    if first is None:
        raise RefereeError(f"{name} holds no episodes")
    return first.meta.cameras or ("main_images",)


def _cameras(part: RewardBinaryDataset) -> tuple[str, ...]:
    """Names of the views; others' files do not have any."""
    views = part.sample_shape[0] if len(part.sample_shape) == 4 else 1
    named = part.metadata.get("cameras")
    if isinstance(named, list) and len(named) == views and len(set(named)) == views:
        return tuple(str(name) for name in named)
    return ("main_images", *(f"extra_view_{number}" for number in range(views - 1)))


def _own_name(camera: str, there: tuple[str, ...]) -> str:
    """`main_images` says which camera, and not what it is called."""
    return there[0] if camera == "main_images" and there else camera


def _places(wanted: tuple[str, ...], there: tuple[str, ...], path: Path) -> tuple[int, ...]:
    """Where the wanted cameras are in a file; `main_images` is the first one there, whatever its name."""
    named = {**dict.fromkeys(MAIN_NAMES, 0), **{name: place for place, name in enumerate(there)}}
    missing = [name for name in wanted if name not in named]
    if missing:
        raise RefereeError(f"{path} has no camera {missing[0]!r}: it has {', '.join(there)}")
    return tuple(named[name] for name in wanted)


def _check(name: str, side: FrameSet) -> None:
    wins, path = int(side.labels.sum()), side.parts[0].path
    if not len(side):
        raise RefereeError(f"{path}: the {name} split is empty")
    if wins in (0, len(side)):
        word = "fail" if wins else "success"
        raise RefereeError(f"{path}: the {name} split has no {word} frame, and so nothing to tell apart: label more")


def _blank(name: str, side: FrameSet) -> list[str]:
    """One line for each camera whose pictures show nothing, by some frames of a file."""
    rows = np.unique(np.linspace(0, len(side) - 1, LOOKED_AT).round().astype(int))
    images = side.batch(rows)[0].numpy()
    views = images if images.ndim == 5 else images[:, None]
    faults = ((camera, blank_fault(views[:, place])) for place, camera in enumerate(side.cameras))
    return [
        f"pictures of {camera} {fault} in most of {len(rows)} sampled {name} frames of {len(side)}: {ADVICE[fault]}"
        for camera, fault in faults
        if fault
    ]


def _refuse_leak(train: FrameSet, val: FrameSet) -> None:
    """No frame of validation may be one of training, and no episode a copy of one, whatever both are called."""
    if train.episodes() and val.episodes():
        both = sorted(set(train.places()) & set(val.places()))
        if both:
            episode, frame = both[0]
            raise RefereeError(
                f"{val.parts[0].path}: frame {frame} of episode {episode} and {len(both) - 1} more are also in "
                f"{train.parts[0].path}: split by episode"
            )
    for episode, images in val.by_episode():
        if train.fingerprint.holds(images):
            raise RefereeError(
                f"{val.parts[0].path}: most frames of episode {episode} are also in {train.parts[0].path}: split by "
                "episode, and keep copies of an episode on one side"
            )
