"""Recipe: a person leads the arm to a fixed pose, episode after episode; frames are labelled by the pose alone."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from referee.config import Loaded
from referee.config.arm import FrankaEnvConfig
from referee.envs import RefereeVectorEnv
from referee.episodes import EpisodeStore
from referee.episodes.formats.pickled import write_data
from referee.episodes.live import LiveRecording
from referee.episodes.recorder import Wanted
from referee.errors import ConfigError, RefereeError
from referee.robots.keys import KeySource
from referee.robots.steering import HELP
from referee.runners.at_arm import Pace, keys_steer, meta_of, open_arm, run_folder, shared_keys, terminal_keys, who_acts
from referee.runners.interrupt import Interrupt
from referee.runners.rundir import locks_folder

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


def record(
    loaded: Loaded,
    env: RefereeVectorEnv,
    store: EpisodeStore,
    keys: KeySource,
    interrupt: Interrupt,
    console: Console,
) -> None:
    """Episodes until there are enough; one that is given up does not count, one under way is cut off."""
    runner, config = loaded.config.runner, loaded.config.env.eval
    assert config is not None
    wanted = Wanted(config.data_collection.only_success)
    recording = LiveRecording(env, store, meta_of(loaded, env), wanted=wanted)
    pace, steps = Pace(runner.pace), 0
    try:
        recording.begin(*env.reset(seed=runner.seed + len(store)))
        act = who_acts(env, loaded)
        while len(store) < runner.num_data_episodes and steps < runner.max_steps:
            pace.wait()
            action = act()
            length = recording.frame + 1
            ended = recording.step(action, env.step(action))
            steps += 1
            if ended is not None:
                tell(store, ended, length, runner.num_data_episodes, console)
            pressed = keys.read()
            if interrupt.wanted or "q" in pressed:
                break
            if "r" in pressed:
                recording.give_up()
                _log.info("an episode was given up")
                recording.begin(*env.reset())
                keys.read()
    finally:
        recording.close()


def tell(store: EpisodeStore, id: str, length: int, wanted: int, console: Console) -> None:
    """One line about an episode that ended."""
    if id not in store.rows:
        said = f"{length} steps without success: not kept"
    else:
        success = store.read(id).success
        frames = 0 if success is None else int(success.sum())
        how = f"{frames} success frames" if frames else "no success"
        said = f"episode {len(store)} of {wanted}: {length} steps, {how}"
    _log.info("%s", said)
    console.print(said)
