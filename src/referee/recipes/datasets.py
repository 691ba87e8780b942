"""Recipes: from recorded episodes to what a reward model learns from."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from referee.config.datasets import FrameConfig, WindowConfig
from referee.datasets.frames import FramesSummary, build_frames
from referee.datasets.source import EpisodeFiles, left_out, open_source
from referee.datasets.windows import INFO, WindowsSummary, build_windows
from referee.episodes import EpisodeStore
from referee.errors import RefereeError
from referee.labels.log import LabelLog


@dataclass(frozen=True, kw_only=True)
class BuiltDataset:
    """A dataset that is written."""

    folder: Path
    left_out: tuple[str, ...]
    """A line about the episodes that could not be read."""
    summary: FramesSummary | WindowsSummary


def frames(source: Path, output: Path, config: FrameConfig, cameras: tuple[str, ...]) -> BuiltDataset:
    """train.pt and val.pt of single frames."""
    _refuse_used(output, "train.pt")
    episodes, labels = _open(source)
    summary = build_frames(episodes, output, config, cameras=cameras, labels=labels, name=str(source))
    return BuiltDataset(folder=output, left_out=tuple(left_out(episodes)), summary=summary)


def windows(source: Path, output: Path, config: WindowConfig) -> BuiltDataset:
    """Windows of several frames with the trend in them."""
    _refuse_used(output, INFO)
    episodes, labels = _open(source)
    summary = build_windows(episodes, output, config, labels=labels, name=str(source))
    return BuiltDataset(folder=output, left_out=tuple(left_out(episodes)), summary=summary)


def _refuse_used(output: Path, name: str) -> None:
    if (output / name).exists():
        raise RefereeError(
            f"{output} holds a dataset already: choose another --output-dir, or remove it (rm -r {output})"
        )


def _open(source: Path) -> tuple[EpisodeStore | EpisodeFiles, LabelLog | None]:
    logging.getLogger("referee.datasets").addHandler(logging.NullHandler())  # warnings are in the summary
    episodes = open_source(source)
    return episodes, LabelLog.of(episodes) if isinstance(episodes, EpisodeStore) else None
