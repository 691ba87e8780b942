"""Episodes of one arm, written down while a person is at it: a kill or Ctrl-C loses at most the last second."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from referee import files
from referee.envs.contract import IMAGES, Observation, RefereeVectorEnv, StepResult
from referee.episodes.episode import EpisodeError, Meta
from referee.episodes.health import Health
from referee.episodes.journal import Journal
from referee.episodes.recorder import SIGNALS, Wanted, really_taken, step_signal
from referee.episodes.store import EpisodeStore

SECONDS = 0.4
"""Between two writings; with the time that one takes, less than a second is ever at stake."""
ENV_SUCCESS = "env_success"
"""The signal that holds what the environment thinks of a state, where a person has the word."""

_log = logging.getLogger(__name__)


class LiveRecording:
    """The episodes of an environment with one arm. `begin` with the first state, then `step` with each result.

    Where an episode ends, it is kept and the next one begins; `end` keeps it on a person's word, `close` keeps what is
    under way. A thread writes frames down, and words about them after them, so that no word speaks of a lost frame.
    """

    def __init__(
        self,
        env: RefereeVectorEnv,
        store: EpisodeStore,
        meta: Meta,
        *,
        trust_env: bool = True,
        prepare: Callable[[], Callable[[], None]] | None = None,
        wanted: Wanted | None = None,
        seconds: float = SECONDS,
    ) -> None:
        """trust_env: the environment's success is the label of a frame; else it is only kept beside.

        prepare: called before frames are written; what it returns is called when they are on disk.
        wanted: which episodes are kept; all, if not given.
        """
        check_single(env)
        self.store = store
        self.kept = 0
        """Episodes of this recording that are safe in the store."""
        self._env, self._trust = env, trust_env
        self._meta = replace(meta, description=env.task_description, cameras=tuple(env.cameras),
                             fps=meta.fps or env.metadata.get("render_fps"))  # fmt: skip
        self._wanted, self._once, self._health = wanted, False, Health()
        self._prepare = prepare
        self._journal: Journal | None = None
        self._number = len(store)
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._seconds = seconds
        self._thread = threading.Thread(target=self._write_now_and_then, name="live-recording", daemon=True)
        self._thread.start()

    @property
    def episode(self) -> str:
        """The id of the episode under way."""
        return self._under_way.meta.id

    @property
    def fps(self) -> float | None:
        """Frames per second, as the episodes say it."""
        return self._meta.fps

    @property
    def frame(self) -> int:
        """The number of the newest frame; the first state of an episode is frame 0."""
        return len(self._under_way)

    @property
    def _under_way(self) -> Journal:
        if self._journal is None:
            raise EpisodeError("a live recording was used before begin()")
        return self._journal

    def begin(self, observation: Observation, info: dict[str, Any]) -> None:
        """The first state of an episode."""
        seen = self._seen(observation)
        self._journal = Journal(
            self.store, replace(self._meta, episode=self._number), max_seconds=float("inf"), max_states=1 << 60,
            say=_say,
        )  # fmt: skip
        self._number += 1
        self._once = False
        self._journal.start(seen, **self._about(info, {}))

    def step(self, action: np.ndarray, result: StepResult) -> str | None:
        """An action f[1,a] and what came of it; returns the id of the episode that ended with it, else None.

        Where a person intervened, or the arm held, the action that it really made is recorded.
        """
        self.check()
        observation, rewards, terminated, truncated, info = result
        done = bool(terminated[0] or truncated[0])
        last = {name: value[None] for name, value in info["final_obs"][0].items()} if done else observation
        truth = info["final_info"] if done else info
        self._under_way.step(
            really_taken(action, info)[0], self._seen(last, final=done), reward=float(rewards[0]),
            terminated=bool(terminated[0]), truncated=bool(truncated[0]), **self._about(truth, info),
        )  # fmt: skip
        if not done:
            return None
        id = self._finish()
        self.begin(observation, info)
        return id

    def end(self) -> str | None:
        """Keep the episode under way, which a person or a verdict ended; `begin` is next. None if it had no step."""
        if not self.frame:
            self.give_up()
            return None
        self._under_way.end_here()
        return self._finish()

    def give_up(self) -> None:
        """Forget the episode under way; `begin` is next."""
        if self._journal is not None:
            self._journal.discard()
            self._journal = None

    def check(self) -> None:
        """Raise what went wrong while writing."""
        if self._error is not None:
            raise EpisodeError(f"recording stopped: {self._error}") from self._error

    def flush(self) -> None:
        """Write down all that is there, and wait until it is on disk."""
        journal, words = self._journal, self._prepare() if self._prepare is not None else None
        if journal is not None:
            journal.flush()
        if words is not None:
            words()

    def close(self) -> None:
        """Keep what is under way, cut off here, and stop."""
        self._done.set()
        self._thread.join()
        if self._error is None:
            if self._journal is not None and self.frame:
                self._finish()
            else:
                self.give_up()
            self._journal = None
            self.flush()
            for line in self._health.picture_warnings():
                _say(f"recorded: {line}")

    def _finish(self) -> str:
        journal = self._under_way
        id = journal.meta.id
        if self._wanted is None or self._wanted.take(self._once):
            journal.finish()
            self.kept += 1
            for line in self._health.look(self.store.read(id)):
                _say(f"recording: {line}")
        else:
            journal.discard()
        return id

    def _write_now_and_then(self) -> None:
        while not self._done.wait(self._seconds):
            try:
                self.flush()
            except Exception as error:  # the next step says so
                self._error = error
                return

    def _seen(self, observation: Observation, *, final: bool = False) -> dict[str, np.ndarray]:
        pictures = observation
        if "main_images" not in observation:
            pictures = self._env.render_cameras([0], final=final)
        seen = {name: pictures[name][0] for name in IMAGES if name in pictures}
        return seen if "states" not in observation else {"states": observation["states"][0], **seen}

    def _about(self, truth: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
        """truth: the info about a state; step: that about the step that led to it."""
        signals: dict[str, Any] = {name: truth[name][0] for name in SIGNALS if name in truth}
        for name in self._env.step_signals:
            signals[name] = bool(step_signal(name, step, 1)[0])
        success = bool(truth["success"][0])
        self._once |= success
        if self._trust:
            return {"success": success, "signals": signals}
        return {"signals": {**signals, ENV_SUCCESS: success}}


def _say(line: str) -> None:
    """To the log, and to the person, where the log goes to a file."""
    _log.warning("%s", line)
    if logging.getLogger("referee").handlers:
        print(f"\n{line}", file=sys.stderr, flush=True)


def check_single(env: RefereeVectorEnv) -> None:
    """Refuse an environment that a person cannot be at, or cannot see."""
    if env.num_envs != 1:
        raise EpisodeError(f"a person leads one arm, not {env.num_envs}: set env.eval.num_envs=1")
    if not env.cameras:
        raise EpisodeError("there is no camera, so no frame could be labelled or judged: name some in env.eval.cameras")


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a run's folder while recording into it; a second recording there is refused. A kill lets go of it."""
    handle = os.open(folder / ".recording", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if files.try_lock(handle) is False:
            raise EpisodeError(f"{folder} is being recorded into by another process: end that first")
        yield
    finally:
        os.close(handle)
