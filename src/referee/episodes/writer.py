"""Writes episodes in the background: never drops one silently, and tells its errors."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from referee.episodes.episode import Episode, EpisodeError

BATCH = 32
"""Episodes written in one go."""


class Sink(Protocol):
    """Where episodes go: a store, or the writer of an older format."""

    def append(self, episode: Episode) -> Any:
        """Keep an episode; when this returns it is on disk."""


@runtime_checkable
class ManySink(Sink, Protocol):
    """A sink that takes several episodes at once for less."""

    def append_many(self, episodes: Sequence[Episode]) -> Any:
        """Keep the episodes; when this returns they are on disk."""


class BackgroundWriter:
    """A thread that appends to a sink. When its queue is full, `put` waits; nothing is lost but time."""

    def __init__(self, sink: Sink, *, capacity: int = 16) -> None:
        self.sink = sink
        self.written = 0
        """Episodes that are safe on disk."""
        self.waited = 0.0
        """Seconds that `put` had to wait for the disk."""
        self._queue: queue.Queue[Episode | None] = queue.Queue(capacity)
        self._error: Exception | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="episode-writer", daemon=True)
        self._thread.start()

    def put(self, episode: Episode) -> None:
        """Hand over an episode whose arrays nobody changes any more."""
        self._raise()
        if self._closed:
            raise EpisodeError("an episode was handed to a writer that is closed")
        start = time.perf_counter()
        self._queue.put(episode)
        self.waited += time.perf_counter() - start

    def flush(self) -> None:
        """Wait until all that was handed over is on disk."""
        self._queue.join()
        self._raise()

    def close(self) -> None:
        """Write what is left, and end."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()
            close = getattr(self.sink, "close", None)
            if close is not None and self._error is None:
                close()
        self._raise()

    def _work(self) -> None:
        last = False
        while not last:
            batch = [self._queue.get()]
            while not self._queue.empty() and len(batch) < BATCH:
                batch.append(self._queue.get())
            last = batch[-1] is None
            try:
                if self._error is None:  # after an error nothing more is written, and the next call says why
                    self._append([episode for episode in batch if episode is not None])
            except Exception as error:
                self._error = error
            finally:
                for _ in batch:
                    self._queue.task_done()

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
            error = self._error
            lost = self._queue.qsize()
            raise EpisodeError(
                f"recording stopped: {error}" + (f" ({lost} more episodes were waiting)" if lost else "")
            ) from error
