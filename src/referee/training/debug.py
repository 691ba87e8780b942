"""Frames as PNG files, for people who want to see what a model learns from and what it makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from referee.datasets import npy
from referee.episodes import Episode
from referee.errors import RefereeError
from referee.models.spec import MAIN_NAMES
from referee.pictures import atomic_save

if TYPE_CHECKING:
    from referee.training.data import FrameSet

LIMIT = 200
"""Pictures of each kind; spread evenly over all frames."""


def already(folder: Path) -> str:
    """What to say of the pictures of an earlier training in a folder; empty where there are none."""
    count = sum(1 for _ in folder.rglob("*.png"))
    return f", beside {count} that were there" if count else ""


def save_by_label(frames: FrameSet, folder: Path, limit: int = LIMIT) -> int:
    """`success/<episode>_frame049.png` and `fail/…` of some frames; returns how many."""
    places, labels = frames.places(), frames.labels.numpy()
    count = 0
    for name, label in (("success", 1), ("fail", 0)):
        chosen = _some(np.flatnonzero(labels == label), limit)
        for index in chosen:
            episode, frame = places[index]
            _save(folder / name / picture_name(episode, frame), frames.batch([int(index)])[0][0].numpy())
        count += len(chosen)
    return count


def save_by_verdict(
    frames: FrameSet, probabilities: np.ndarray, threshold: float, folder: Path, limit: int = LIMIT
) -> int:
    """`resnet_success/000012_prob0.9876.png` and `resnet_fail/…` of some frames, by what the model says of them."""
    count = 0
    for name, mine in (("resnet_success", probabilities >= threshold), ("resnet_fail", probabilities < threshold)):
        chosen = _some(np.flatnonzero(mine), limit)
        for index in chosen:
            path = folder / name / f"{index:06d}_prob{probabilities[index]:.4f}.png"
            _save(path, frames.batch([int(index)])[0][0].numpy())
        count += len(chosen)
    return count


def save_positives(folders: tuple[Path, Path], camera: str, output: Path) -> int:
    """Every success frame of .npy trajectories as `positive_000001_frame049.png`; returns how many."""
    count = 0
    for episode in npy.read(*folders):
        for frame in np.flatnonzero([] if episode.success is None else episode.success):
            _save(output / picture_name(episode.meta.id, int(frame)), _view(episode, camera)[frame])
            count += 1
    return count


def picture_name(episode: str, frame: int) -> str:
    """The folder and the number of a trajectory, and the frame in it."""
    return f"{episode.replace('/', '_')}_frame{frame:03d}.png"


def _view(episode: Episode, camera: str) -> np.ndarray:
    main = camera in MAIN_NAMES and camera not in episode.meta.cameras
    try:
        return episode.view("main_images" if main else camera)
    except RefereeError as error:
        raise RefereeError(f"{error}: choose one with --image-key") from error


def _some(indices: np.ndarray, limit: int) -> np.ndarray:
    return indices[np.linspace(0, len(indices) - 1, limit).round().astype(int)] if len(indices) > limit else indices


def _save(path: Path, images: np.ndarray) -> None:
    """Several views stand side by side."""
    atomic_save(Image.fromarray(images if images.ndim == 3 else np.concatenate(list(images), axis=1)), path)
