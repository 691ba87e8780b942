"""Recipe: a person leads the arm to a fixed pose, episode after episode; frames are labelled by the pose alone."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from referee.collect.led_episodes import record
from referee.collect.session import (
    keys_steer,
    open_arm,
    run_folder,
    shared_keys,
    terminal_keys,
)
from referee.config import Loaded
from referee.config.arm import FrankaEnvConfig
from referee.episodes.formats.pickled import write_data
from referee.errors import ConfigError, RefereeError
from referee.robots.keys import KeySource
from referee.robots.steering import HELP
from referee.runs.folder import locks_folder
from referee.runs.interrupt import Interrupt

LOG, DATA = "run_collect_data.log", "data.pkl"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CollectedEpisodes:
    """Episodes that a person led the arm through."""

    store: Path
    data: Path
    """data.pkl with all of them."""
    episodes: int
    success: int
    """Of them, those with a success."""

    def __str__(self) -> str:
        return f"{self.episodes} episodes, {self.success} with success: {self.data}"


@locks_folder
def collect_data(loaded: Loaded, *, keys: KeySource | None = None) -> CollectedEpisodes:
    """Record `runner.num_data_episodes` episodes, then write all of them into data.pkl."""
    config = loaded.config
    env_config = config.env.eval
    assert env_config is not None
    if isinstance(env_config, FrankaEnvConfig) and env_config.target_ee_pose is None and not _twin(env_config):
        raise ConfigError("env.eval.target_ee_pose is not set, so nothing would be a success: give the calibrated pose")
    keys = keys or terminal_keys("env.eval.teleoperator=keyboard steers by keys" if keys_steer(env_config) else None)
    console = Console(highlight=False)
    with run_folder(loaded, LOG) as (folder, store):
        keys, hand = shared_keys(loaded, keys)
        env = open_arm(loaded, folder, hand=hand)
        try:
            console.print(f"Keys: r gives the episode up, q stops. Episodes are kept in {store.root}.", soft_wrap=True)
            if hand is not None:
                console.print(f"Steering: {HELP}", soft_wrap=True)
            with Interrupt(console, "saving") as interrupt, keys:
                record(loaded, env, store, keys, interrupt, console)
        finally:
            env.close()
        if not len(store):
            raise RefereeError(f"no episode was recorded: runner.resume_dir={folder} begins again")
        write_data(folder / DATA, store)
        success = sum(bool(row.success_once) for row in store.rows.values())
        made = CollectedEpisodes(store=store.root, data=folder / DATA, episodes=len(store), success=success)
        _log.info("%s", made)
    return made


def _twin(config: FrankaEnvConfig) -> bool:
    return config.robot.driver == "twin"
