"""Recipe: a person labels frames by key while the arm moves, and gets train.pt and val.pt in the same run."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from referee.config import Config, Loaded
from referee.config.arm import FrankaEnvConfig
from referee.config.datasets import DataConfig, FrameConfig
from referee.datasets.frames import FramesSummary, build_frames
from referee.envs import RefereeVectorEnv
from referee.episodes import EpisodeStore
from referee.episodes.live import LiveRecording
from referee.errors import ConfigError, RefereeError
from referee.labels.keyboard import progress_line
from referee.labels.log import LabelLog, user
from referee.labels.session import LabelSession, silence_held
from referee.robots.keys import KeySource
from referee.robots.steering import HELP
from referee.runners.at_arm import (
    Pace,
    begin_again,
    meta_of,
    open_arm,
    run_folder,
    shared_keys,
    terminal_keys,
    who_acts,
)
from referee.runners.interrupt import Interrupt
from referee.runners.rundir import locks_folder

LOG = "run_collect_process.log"
KEYS = (
    "c success, a fail, held down or frame by frame | C, A: from here on, x: no more | u undo | r next episode | q done"
)
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


@locks_folder
def collect_labels(loaded: Loaded, *, keys: KeySource | None = None) -> LabelledFrames:
    """Record and label until there are enough frames of both kinds, then make the dataset."""
    config = loaded.config
    check(config)
    keys = keys or terminal_keys("frames are labelled by keys")
    console = Console(highlight=False)
    with run_folder(loaded, LOG) as (folder, store):
        session = LabelSession(store, who=user(), ends_on=config.runner.labelling.ends_on)
        keys, hand = shared_keys(loaded, keys)
        env = open_arm(loaded, folder, own_success_ends=False, hand=hand)
        try:
            console.print(f"Keys: {KEYS}\nEverything is kept in {store.root} while it happens.", soft_wrap=True)
            if hand is not None:
                console.print(f"Steering: {HELP}", soft_wrap=True)
            with Interrupt(console, "saving") as interrupt, keys:
                ready = partial(can_be_made, config, store, folder, env.cameras)
                why = label(loaded, env, store, session, keys, interrupt, ready)
        finally:
            env.close()
        _log.info("%s", why)
        console.print(why, soft_wrap=True)
        return make_dataset(config, store, folder, env.cameras, strict=not interrupt.wanted)


def check(config: Config) -> None:
    """Refuse what cannot work before an arm moves."""
    env = config.env.eval
    if isinstance(env, FrankaEnvConfig) and env.keyboard_reward_wrapper is None:
        raise ConfigError("env.eval.keyboard_reward_wrapper is null, so keys would say nothing: set it to single_stage")
    cameras = None if env is None else env.cameras
    strange = [name for name in _cameras(config) or () if cameras is not None and name not in cameras]
    if strange:
        raise ConfigError(f"data.cameras names {strange[0]}, which is not one of env.eval.cameras: add it there too")


def label(
    loaded: Loaded,
    env: RefereeVectorEnv,
    store: EpisodeStore,
    session: LabelSession,
    keys: KeySource,
    interrupt: Interrupt,
    ready: Callable[[], bool],
) -> str:
    """Step, record and listen; returns why it ended.

    ready: whether a dataset can be made of what is there. Where there were enough frames from the start, as after one
    that could not, it goes on until it can, or until somebody stops it.
    """
    runner = loaded.config.runner
    pace, bars = Pace(runner.pace), Bars(runner.num_success_frames, runner.num_fail_frames)
    more = bars.enough(*session.counts)
    if more and ready():
        return "there are enough frames of both kinds"
    if more:
        print("There are as many frames as were wanted, but no dataset can be made of them yet: go on, q stops.")
    recording = LiveRecording(env, store, meta_of(loaded, env), trust_env=False, prepare=session.prepare)
    try:
        recording.begin(*env.reset(seed=runner.seed + len(store)))
        session.begin(recording.episode)
        act = who_acts(env, loaded)
        keys.read()  # what was typed while the arm went to its start is about no frame
        for _ in range(runner.max_steps):
            pace.wait()
            action = act()
            ended = recording.step(action, env.step(action))
            ends, stops = session.hear(keys.read())
            bars.show(*session.counts, session.state)
            if bars.enough(*session.counts) and not more:
                return "there are enough frames of both kinds"
            if stops or interrupt.wanted:
                return "stopped by hand"
            if ends and ended is None:
                begin_again(env, recording)
                keys.read()
            if ends or ended is not None:
                session.begin(recording.episode)
                if more:
                    recording.flush()
                    if ready():
                        return "there are enough frames of both kinds"
        return f"runner.max_steps={runner.max_steps} reached before there were enough frames"
    finally:
        bars.end()
        recording.close()


def can_be_made(config: Config, store: EpisodeStore, folder: Path, cameras: tuple[str, ...]) -> bool:
    """Whether what was labelled so far makes a dataset; if so, it is there."""
    try:
        _build(config, store, folder, cameras)
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
        summary = _build(config, store, folder, cameras)
    except RefereeError as error:
        _log.warning("no dataset was made: %s", error)
        if strict:
            raise RefereeError(f"no dataset was made: {error}. {go_on}") from error
        return LabelledFrames(folder=folder, summary=None, missing=f"{error}. {go_on}", reaction_seconds=moved)
    for line in str(summary).splitlines():
        _log.info("%s", line)
    return LabelledFrames(folder=folder, summary=summary, missing="", reaction_seconds=moved)


def _build(config: Config, store: EpisodeStore, folder: Path, cameras: tuple[str, ...]) -> FramesSummary:
    """The dataset that a configuration asks for. cameras: of the arm."""
    runner = config.runner
    frames = FrameConfig(
        fail_success_ratio=runner.fail_success_ratio, val_split=runner.val_split, split_seed=runner.random_seed
    )
    seconds = runner.labelling.reaction_seconds
    return build_dataset(store, folder, frames, seconds, cameras=_cameras(config) or tuple(cameras))


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


class Bars:
    """The two bars: in place on a terminal, else a line now and then."""

    SECONDS = 1.0

    def __init__(self, success: int, fail: int) -> None:
        self._wanted = success, fail
        self._line = self._shown = ""
        self._when = 0.0
        self._terminal = sys.stdout.isatty()

    def enough(self, success: int, fail: int) -> bool:
        """Whether there are as many frames as were wanted."""
        return success >= self._wanted[0] and fail >= self._wanted[1]

    def show(self, success: int, fail: int, state: bool | None) -> None:
        """The counts, and what is being said of frames as they come."""
        said = {True: "  C: success", False: "  A: fail", None: ""}[state]
        columns = shutil.get_terminal_size((120, 24)).columns
        line = progress_line(success, self._wanted[0], fail, self._wanted[1], columns=columns - 12) + said
        self._line, now = line, time.monotonic()
        if line != self._shown and (self._terminal or now - self._when > self.SECONDS):
            print(f"\r{line}\x1b[K" if self._terminal else line, end="" if self._terminal else "\n", flush=True)
            self._shown, self._when = line, now

    def end(self) -> None:
        """Leave the line, with the last word in it."""
        if self._terminal and self._shown:
            print()
        elif self._line != self._shown:
            print(self._line, flush=True)


def _cameras(config: Config) -> tuple[str, ...] | None:
    """The views of the dataset; None: all."""
    assert isinstance(config.data, DataConfig)  # the recipe chooses it
    return config.data.cameras
