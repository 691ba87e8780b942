"""What runs with a person at an arm share: a folder to go on in, a log file, a pace, and who acts."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from referee.config import Loaded
from referee.config.arm import FrankaEnvConfig
from referee.config.schema import EnvConfig
from referee.envs import RefereeVectorEnv
from referee.envs.policies import Policy, make_policy
from referee.episodes import EpisodeStore, Meta
from referee.episodes.journal import recover
from referee.episodes.live import LiveRecording, alone_in, check_single
from referee.errors import ConfigError, RefereeError
from referee.learn.environments import make_env
from referee.robots.clock import WallClock
from referee.robots.keys import KeySource, ScriptedKeys, TerminalKeys
from referee.robots.steering import KeySteering
from referee.runs.folder import lock, name_run, open_run

RECORDING = "recording"
"""The folder within a run where its episodes are, journalled from the first frame."""
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def run_folder(loaded: Loaded, log_name: str) -> Iterator[tuple[Path, EpisodeStore]]:
    """The folder of a run, a new one or that of `runner.resume_dir`, and the episodes in it; nobody else writes there.

    What a killed run left is brought back first.
    """
    resume = loaded.config.runner.resume_dir
    if resume is not None:
        folder = Path(resume)
        if not (folder / RECORDING).is_dir():
            raise RefereeError(f"runner.resume_dir: {folder} holds no recording to go on with")
        lock(folder, fix="go on from a copy of it")
    else:
        folder = name_run(loaded)
        if (folder / RECORDING).exists():
            raise RefereeError(
                f"{folder} holds a recording already: go on with it by runner.resume_dir={folder}, or name another"
            )
        open_run(loaded, folder)
    with alone_in(folder), _log_file(folder / log_name):
        store = EpisodeStore(folder / RECORDING)
        brought_back = recover(store, force=True)  # nobody else records here
        if resume is not None:
            _log.info(
                "going on in %s: %d episodes, %d of them cut off by a kill", folder, len(store), len(brought_back)
            )
        yield folder, store


@contextlib.contextmanager
def _log_file(path: Path) -> Iterator[None]:
    logger = logging.getLogger("referee")
    try:
        handler = logging.FileHandler(path)
    except OSError as error:
        raise RefereeError(f"cannot write {path} ({error.strerror})") from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    handler.setLevel(logging.INFO)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        handler.close()


def leader(loaded: Loaded) -> str:
    """Who leads the arm: a person, unless somebody set `runner.policy`."""
    return "person" if loaded.sources.get("runner.policy") == "default" else loaded.config.runner.policy


def keys_steer(config: EnvConfig | None) -> bool:
    """Whether an arm is led by keys of the terminal."""
    return isinstance(config, FrankaEnvConfig) and config.use_spacemouse and config.teleoperator == "keyboard"


def shared_keys(loaded: Loaded, keys: KeySource) -> tuple[KeySource, KeySteering | None]:
    """The keys for whoever labels, and the hand that steers with the others, where keys do."""
    config = loaded.config.env.eval
    if not keys_steer(config) or leader(loaded) != "person":
        return keys, None
    hand = KeySteering(keys, WallClock())
    return hand.others, hand


def open_arm(
    loaded: Loaded, folder: Path, *, own_success_ends: bool = True, hand: KeySteering | None = None
) -> RefereeVectorEnv:
    """The environment, with one arm; recording is done beside it.

    own_success_ends: whether the environment's own success may end episodes. hand: of `shared_keys`.
    """
    config, leads = loaded.config.env.eval, leader(loaded)
    assert config is not None
    if isinstance(config, FrankaEnvConfig) and config.use_spacemouse and leads != "person":
        _log.info("runner.policy=%s leads the arm: no SpaceMouse is opened", leads)
        config = replace(config, use_spacemouse=False)
    if config.terminate_on_success and not own_success_ends:
        _log.info("episodes are ended by others than the environment's own success")
        config = replace(config, terminate_on_success=False)
    env = make_env(
        replace(config, data_collection=replace(config.data_collection, enabled=False)), folder, "person", hand
    )
    try:
        check_single(env)
    except RefereeError:
        env.close()
        raise
    return env


def who_acts(env: RefereeVectorEnv, loaded: Loaded) -> Policy:
    """Who gives actions; with `person`, nobody does: a device overrides stillness."""
    runner, leads = loaded.config.runner, leader(loaded)
    if leads == "person":
        still = np.zeros((env.num_envs, *env.single_action_space.shape), np.float32)  # type: ignore[misc]
        return lambda: still
    return make_policy(env.unwrapped, leads, noise=runner.expert_noise, miss=runner.expert_miss, seed=runner.seed)


def meta_of(loaded: Loaded, env: RefereeVectorEnv) -> Meta:
    """What episodes of this run say of themselves."""
    config = loaded.config.env.eval
    assert config is not None
    runner = loaded.config.runner
    return Meta(task=config.task, source=leader(loaded), seed=runner.seed, fps=runner.pace)


def begin_again(env: RefereeVectorEnv, recording: LiveRecording) -> None:
    """The next episode, after one that a person or a verdict ended."""
    recording.end()
    recording.begin(*env.reset(options={"reset_mask": np.ones(1, bool), "terminated": True}))


def terminal_keys(needed: str | None = None) -> KeySource:
    """The keys of this terminal; where there is none, an error if they are `needed` for something, else no keys."""
    try:
        there = sys.stdin.isatty()
    except ValueError:  # closed
        there = False
    if there:
        return TerminalKeys()
    if needed is not None:
        raise ConfigError(f"{needed}, but standard input is no terminal: start this in a terminal (SSH will do)")
    return ScriptedKeys()


class Pace:
    """Waits so that steps come so many times a second; null waits not at all. What is late is not caught up."""

    def __init__(self, steps_per_second: float | None) -> None:
        self._period = 0.0 if steps_per_second is None else 1 / steps_per_second
        self._next = time.monotonic()

    def wait(self) -> None:
        """Until the next step is due."""
        if self._period:
            now = time.monotonic()
            self._next = max(self._next + self._period, now)
            time.sleep(self._next - now)
