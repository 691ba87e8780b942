"""Writes episodes in the background: never drops one silently, and tells its errors."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from referee.episodes.episode import Episode, EpisodeError
from referee.episodes.health import Health

_log = logging.getLogger(__name__)
GATHER = 0.02
"""Seconds in which an episode waits for others that end at the same time: the disk takes them in one go for less."""


class Sink(Protocol):
    """Where episodes go: a store, or the writer of an older format."""

    def append(self, episode: Episode) -> Any:
        """Keep an episode; when this returns it is on disk."""


@runtime_checkable
class ManySink(Sink, Protocol):
    """A sink that takes several episodes at once for less."""

    def append_many(self, episodes: Sequence[Episode]) -> Any:
        """Keep the episodes; when this returns they are on disk."""


@runtime_checkable
class NumberedSink(Sink, Protocol):
    """A sink that knows the numbers of the episodes in it."""

    def last_numbers(self, rank: int) -> dict[int, int]:
        """The highest number of an episode, by environment."""


class BackgroundWriter:
    """A thread that appends to a sink, and bundles what arrives together.

    At most `capacity` episodes are handed over and not yet safe; then `put` waits: nothing is lost but time.
    Pictures that show nothing are told at the first such episode, and counted at the end; so is a single label.
    """

    def __init__(self, sink: Sink, *, capacity: int = 16) -> None:
        self.sink = sink
        self.written = 0
        """Episodes that are safe on disk."""
        self.waited = 0.0
        """Seconds that `put` had to wait for the disk."""
        self._health = Health()
        self._capacity = capacity
        self._waiting: list[Episode] = []
        self._unsafe = 0  # those that wait, and those that are being written
        lock = threading.Lock()
        self._arrived, self._settled = threading.Condition(lock), threading.Condition(lock)
        self._hurry = threading.Event()
        self._error: Exception | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="episode-writer", daemon=True)
        self._thread.start()
        atexit.register(self._at_exit)

    def put(self, episode: Episode) -> None:
        """Hand over an episode whose arrays nobody changes any more."""
        if self._closed:
            raise EpisodeError("an episode was handed to a writer that is closed")
        for line in self._health.look(episode):
            _log.warning("recording: %s", line)
        with self._settled:
            if self._unsafe >= self._capacity:
                start = time.perf_counter()
                self._wait(lambda: self._unsafe < self._capacity)
                self.waited += time.perf_counter() - start
            self._raise()
            self._waiting.append(episode)
            self._unsafe += 1
            if len(self._waiting) == 1:
                self._arrived.notify()

    def flush(self) -> None:
        """Wait until all that was handed over is on disk."""
        with self._settled:
            self._wait(lambda: self._unsafe == 0)
        self._raise()

    def close(self) -> None:
        """Write what is left, and end."""
        if not self._closed:
            self._closed = True
            with self._arrived:
                self._hurry.set()
                self._arrived.notify()
            self._thread.join()
            atexit.unregister(self._at_exit)
            close = getattr(self.sink, "close", None)
            if close is not None and self._error is None:
                close()
            self._tell_health()
        self._raise()

    def _at_exit(self) -> None:
        """Of a program that never calls `close`: what it handed over is not lost."""
        if self._thread.is_alive():  # not in a child that was forked
            self.flush()
            self._tell_health()

    def _tell_health(self) -> None:
        health = self._health
        for line in health.warnings() if health.labelled else health.picture_warnings():
            _log.warning("recorded: %s", line)

    def _wait(self, enough: Callable[[], bool]) -> None:
        """Until so many are safe, or none will be any more; whoever waits needs no bundles."""
        self._hurry.set()
        self._settled.wait_for(lambda: enough() or self._error is not None)

    def _work(self) -> None:
        while self._error is None:
            with self._arrived:
                self._arrived.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
            self._hurry.wait(GATHER)
            with self._arrived:
                bundle, self._waiting = self._waiting, []
                self._hurry.clear()
            try:
                self._append(bundle)
            except Exception as error:  # nothing more is written, and the next call says why
                self._error = error
            finally:
                with self._settled:
                    self._unsafe -= len(bundle)
                    self._settled.notify_all()

    def _append(self, episodes: list[Episode]) -> None:
        if isinstance(self.sink, ManySink):
            self.sink.append_many(episodes)
            self.written += len(episodes)
            return
        for episode in episodes:
            self.sink.append(episode)
            self.written += 1

    def _raise(self) -> None:
        if self._error is not None:
            lost = len(self._waiting)
            raise EpisodeError(
                f"recording stopped: {self._error}" + (f" ({lost} more episodes were waiting)" if lost else "")
            ) from self._error
