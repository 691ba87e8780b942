"""Steps of an arm that a person labels by key, with two bars of progress."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable

from referee.collect.session import (
    Pace,
    begin_again,
    meta_of,
    who_acts,
)
from referee.config import Loaded
from referee.envs import RefereeVectorEnv
from referee.episodes import EpisodeStore
from referee.episodes.live import LiveRecording
from referee.labels.keyboard import progress_line
from referee.labels.session import LabelSession
from referee.robots.keys import KeySource
from referee.runs.interrupt import Interrupt


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
