"""Recipe: train a reward model, and choose its threshold and gate for a stated share of failing episodes paid."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path

from rich.console import Console

from referee import cpu
from referee.audit.calibrated_training import TrainedReward, train_and_calibrate
from referee.config import Config, Loaded
from referee.config.datasets import DataConfig
from referee.config.reward_training import RewardActorConfig
from referee.recipes.model_keys import as_continued
from referee.runs.folder import locks_folder, name_run, open_run
from referee.runs.interrupt import Interrupt
from referee.runs.logbook import Logbook, check_backends, say_dropped
from referee.runtime import Cluster
from referee.training.checkpoint import step_of
from referee.training.options import FitOptions
from referee.training.recipe import TrainOptions, check_paths
from referee.workers.fitters import launcher, placed

_log = logging.getLogger(__name__)
BEST = ("reward_model_best.pt", "best_model.pt")
"""The documents call the best weights by both names."""


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
