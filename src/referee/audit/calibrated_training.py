"""A training of a reward model, with threshold and gate chosen on its validation episodes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from referee.audit.calibrate import Choice, calibrate
from referee.audit.judged import Judged, judge, judge_frames
from referee.audit.measure import trained_on
from referee.config.datasets import DataConfig
from referee.datasets.payload import RewardBinaryDataset
from referee.datasets.source import open_source
from referee.models.artifact import Artifact, Calibration
from referee.training.bar import Log
from referee.training.parallel import Launch
from referee.training.recipe import TrainOptions, train

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainedReward:
    """A reward model that was trained and calibrated."""

    folder: Path
    """Of the artifact."""
    choice: Choice | None
    """Temperature, threshold and gate, and what they do on validation; None without validation."""
    episodes: Path | None
    """What it was trained on, where that holds whole episodes, of which some are left for an audit."""

    @property
    def artifact(self) -> Artifact:
        """Read from its folder."""
        return Artifact.load(self.folder)


def train_and_calibrate(
    options: TrainOptions,
    console: Console,
    *,
    target: float,
    log: Log | None = None,
    stop: Callable[[], bool] | None = None,
    launch: Launch | None = None,
) -> TrainedReward:
    """A training, with temperature, threshold and gate chosen on its validation episodes."""
    logging.getLogger("referee.datasets").addHandler(logging.NullHandler())  # warnings are in the summary
    folder = train(options, console, log=log, stop=stop, launch=launch)
    artifact = Artifact.load(folder)
    judged = validation(artifact, options.data)
    if not judged:
        _log.warning("%s: %s", folder, artifact.doubt)
        return TrainedReward(folder=folder, choice=None, episodes=None)
    choice = calibrate(judged, target=target)
    artifact.recalibrate(Calibration(**choice.fields()))
    if artifact.doubt:
        _log.warning("%s: %s", folder, artifact.doubt)
    source = None if options.data.data_path is None else Path(options.data.data_path)
    whole = source is not None and not _holds_frames(source) and bool(trained_on(artifact.provenance, "val"))
    return TrainedReward(folder=folder, choice=choice, episodes=source if whole else None)


def validation(artifact: Artifact, data: DataConfig) -> list[Judged]:
    """What the model says about the validation episodes: all of their states where the episodes are at hand."""
    ids = trained_on(artifact.provenance, "val")
    source = None if data.data_path is None else Path(data.data_path)
    if source is not None and ids and not _holds_frames(source):
        return judge(artifact, open_source(source), skip=lambda id: id not in ids)
    files = artifact.provenance.get("files", {}).get("val", [])
    return [each for file in files for each in judge_frames(artifact, RewardBinaryDataset(Path(file)))]


def _holds_frames(path: Path) -> bool:
    """Whether it is files of frames, and not of episodes."""
    return path.suffix in (".pt", ".pth") or (path / "train.pt").exists()
