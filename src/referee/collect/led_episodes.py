"""Episodes through which a person leads an arm."""

from __future__ import annotations

import logging

from rich.console import Console

from referee.collect.session import (
    Pace,
    meta_of,
    who_acts,
)
from referee.config import Loaded
from referee.envs import RefereeVectorEnv
from referee.episodes import EpisodeStore
from referee.episodes.live import LiveRecording
from referee.episodes.recorder import Wanted
from referee.robots.keys import KeySource
from referee.runs.interrupt import Interrupt

_log = logging.getLogger(__name__)


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
