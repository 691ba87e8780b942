"""Recipe: train a reward model, and choose its threshold and gate for a stated share of failing episodes paid."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from referee import cpu
from referee.audit.calibrate import Choice, calibrate
from referee.audit.judged import Judged, judge, judge_frames
from referee.audit.measure import trained_on
from referee.config import Config, Loaded
from referee.config.datasets import DataConfig
from referee.config.reward_training import RewardActorConfig
from referee.datasets.payload import RewardBinaryDataset
from referee.datasets.source import open_source
from referee.models.artifact import Artifact, Calibration
from referee.runners.fitters import launcher, placed
from referee.runners.interrupt import Interrupt
from referee.runners.logbook import Logbook, check_backends, say_dropped
from referee.runners.model_keys import as_continued
from referee.runners.rundir import locks_folder, name_run, open_run
from referee.runtime import Cluster
from referee.training.bar import Log
from referee.training.checkpoint import step_of
from referee.training.options import FitOptions
from referee.training.parallel import Launch
from referee.training.recipe import TrainOptions, check_paths, train

_log = logging.getLogger(__name__)
BEST = ("reward_model_best.pt", "best_model.pt")
"""The documents call the best weights by both names."""


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


def train_reward(loaded: Loaded) -> TrainedReward:
    """Train and calibrate; progress is printed, the result is returned."""
    return train_placed(loaded, Console())


@locks_folder
def train_placed(loaded: Loaded, console: Console) -> TrainedReward:
    """A training where the cluster section says; what cannot be placed is refused first."""
    check_backends(loaded)
    cpu.cap_if_needed()
    loaded = as_continued(loaded)
    config, folder = loaded.config, name_run(loaded)
    options = job_of(config, folder)
    check_paths(options)
    at = step_of(options.resume)
    with Cluster(config.cluster) as cluster:
        options = placed(options, config, cluster)
        open_run(loaded, folder)
        with closing(Logbook(folder, loaded, resumed_at=at)) as logbook, Interrupt(console) as interrupt:
            say_dropped(console, logbook, at)
            trained = train_and_calibrate(
                options,
                console,
                target=config.runner.target_episode_fpr,
                log=logbook.write,
                stop=lambda: interrupt.wanted,
                launch=launcher(cluster),
            )
    if interrupt.wanted:
        console.print(f"stopped; go on with runner.resume_dir={folder}", soft_wrap=True)
        raise KeyboardInterrupt
    return trained


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


def job_of(config: Config, folder: Path) -> TrainOptions:
    """The training that a configuration describes. folder: of the run."""
    runner, data, actor = config.runner, config.data, config.actor
    assert isinstance(actor, RewardActorConfig) and isinstance(data, DataConfig)  # the recipe chooses them
    save_dir = None if runner.save_dir is None else Path(runner.save_dir).resolve()
    return TrainOptions(
        data=data,
        output=folder,
        model=actor.model,
        fit=FitOptions.of(actor, runner),
        resume_dir=runner.resume_dir,
        save_dir=None if save_dir is None else str(save_dir),
        checkpoints=() if save_dir is None else tuple(save_dir / name for name in BEST),
    )


def _holds_frames(path: Path) -> bool:
    """Whether it is files of frames, and not of episodes."""
    return path.suffix in (".pt", ".pth") or (path / "train.pt").exists()
