"""Trajectories in positive and negative folders of .npy files, as (trajectory, frame, label) samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from referee.episodes import Episode, EpisodeError
from referee.episodes.formats import npy


class Sample(NamedTuple):
    """One frame."""

    trajectory: Path
    frame: int
    label: int


@dataclass(frozen=True)
class FolderCounts:
    """What one folder holds."""

    folder: Path
    trajectories: int = 0
    frames: int = 0
    ones: int = 0
    zeros: int = 0

    def __str__(self) -> str:
        return (
            f"{self.folder}: {self.trajectories} trajectories, {self.frames} frames, "
            f"label=1: {self.ones}, label=0: {self.zeros}"
        )


def expand(*folders: Path | str) -> tuple[list[Sample], list[FolderCounts]]:
    """Every frame of every trajectory with its own label, and the counts of each folder."""
    samples: list[Sample] = []
    counts: list[FolderCounts] = []
    for folder in map(Path, folders):
        mine = [
            Sample(path, frame, int(label))
            for path in _files(folder)
            for episode in npy.read(path)
            for frame, label in enumerate(() if episode.success is None else episode.success)
        ]
        ones = sum(sample.label for sample in mine)
        trajectories = len({sample.trajectory for sample in mine})
        counts.append(FolderCounts(folder, trajectories, len(mine), ones, len(mine) - ones))
        samples += mine
    return samples, counts


def read(*folders: Path | str) -> Iterator[Episode]:
    """The trajectories as episodes for `build_frames`, named as `positive/000012`."""
    for folder in map(Path, folders):
        for path in _files(folder):
            for episode in npy.read(path):
                yield replace(episode, meta=replace(episode.meta, id=f"{folder.name}/{path.stem}", source=str(path)))


def _files(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.glob("*.npy") if not path.name.startswith("."))
    if not found:
        raise EpisodeError(f"{folder} holds no .npy trajectories")
    return found
