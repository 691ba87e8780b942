"""The dataset of what was labelled by key: train.pt and val.pt, split by episode."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from referee.config import Config
from referee.config.datasets import DataConfig, FrameConfig
from referee.datasets.frames import FramesSummary, build_frames
from referee.episodes import EpisodeStore
from referee.errors import RefereeError
from referee.labels.log import LabelLog
from referee.labels.session import silence_held

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LabelledFrames:
    """What was labelled by key, and the dataset of it."""

    folder: Path
    summary: FramesSummary | None
    """None where no dataset could be made."""
    missing: str
    """Why not, and how to go on."""
    reaction_seconds: float
    """Labels were moved so much earlier."""


def can_be_made(config: Config, store: EpisodeStore, folder: Path, cameras: tuple[str, ...]) -> bool:
    """Whether what was labelled so far makes a dataset; if so, it is there."""
    try:
        build_configured(config, store, folder, cameras)
    except RefereeError as error:
        _log.info("no dataset can be made yet: %s", error)
        return False
    return True


def make_dataset(
    config: Config, store: EpisodeStore, folder: Path, cameras: tuple[str, ...], *, strict: bool
) -> LabelledFrames:
    """train.pt and val.pt of what was labelled. strict: what is missing for that is an error, else only said."""
    go_on = (
        f"Nothing is lost: runner.resume_dir={folder} goes on until there is enough for both sides; give another "
        "runner.val_split, runner.num_success_frames or runner.num_fail_frames with it if you like"
    )
    moved = config.runner.labelling.reaction_seconds
    try:
        summary = build_configured(config, store, folder, cameras)
    except RefereeError as error:
        _log.warning("no dataset was made: %s", error)
        if strict:
            raise RefereeError(f"no dataset was made: {error}. {go_on}") from error
        return LabelledFrames(folder=folder, summary=None, missing=f"{error}. {go_on}", reaction_seconds=moved)
    for line in str(summary).splitlines():
        _log.info("%s", line)
    return LabelledFrames(folder=folder, summary=summary, missing="", reaction_seconds=moved)


def build_configured(config: Config, store: EpisodeStore, folder: Path, cameras: tuple[str, ...]) -> FramesSummary:
    """The dataset that a configuration asks for. cameras: of the arm."""
    runner = config.runner
    frames = FrameConfig(
        fail_success_ratio=runner.fail_success_ratio, val_split=runner.val_split, split_seed=runner.random_seed
    )
    seconds = runner.labelling.reaction_seconds
    return build_dataset(store, folder, frames, seconds, cameras=cameras_of_dataset(config) or tuple(cameras))


def build_dataset(
    store: EpisodeStore,
    folder: Path,
    frames: FrameConfig,
    reaction_seconds: float,
    *,
    cameras: tuple[str, ...] = ("main_images",),
) -> FramesSummary:
    """The labelled frames of a recording, split by episode, or by stretches of the only one."""
    log = LabelLog.of(store, offset_seconds=reaction_seconds)
    held = silence_held(store, log)
    if held:
        _log.warning("%d frames are left out: the arm held while they were taken, and they may be old", held)
    return build_frames(store, folder, frames, cameras=cameras, stretches=True, labels=log)


def cameras_of_dataset(config: Config) -> tuple[str, ...] | None:
    """The views of the dataset; None: all."""
    assert isinstance(config.data, DataConfig)  # the recipe chooses it
    return config.data.cameras
