"""A rollout source beside which learning goes on: who acts never waits for the learner.

    elsewhere: act ──rollouts and frames──▶ thread: relabel ──rewards──▶ Trainer: remember, learn
         ▲                                                                   │
         └───────────────────── weights, every n updates ────────────────────┘

Only if more than `max_lag` steps wait to be relabelled and remembered do the environments wait.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from referee.config import Config
from referee.errors import RefereeError
from referee.learn.batch import RolloutBatch
from referee.learn.collector import Collector, acting_state
from referee.learn.source import described, weights_of
from referee.learn.worker_feed import ActingState, ActingStopped, Message, WorkerFeed
from referee.models import Artifact
from referee.models.packed import Packed
from referee.rewards.source import RewardSource
from referee.rl.learner import Pace
from referee.rl.rollout import Rollout
from referee.rl.squashed import AnyPolicy

if TYPE_CHECKING:
    from referee.learn.trainer import Trainer

BUSY = 0.01
"""Seconds between looks whether somebody who acts has nothing to do."""
PATIENCE = 0.2
"""Seconds after which a thread that waits looks whether the run is over."""
PIECES = 8
"""Times that weights are published in an iteration, at most; what is due beyond is given up: nothing piles up."""
AT_ONCE = 24
"""Rollouts that are taken in one iteration, at most."""
RELABELLED = 4
"""Rollouts that may wait with their reward; the others wait without."""


class AsyncSource:
    """A RolloutSource that is not in step: a thread relabels what comes in while the learner learns."""

    in_step = False

    def __init__(self, config: Config, folder: Path, feed: WorkerFeed | None = None) -> None:
        """feed: of rollouts, if not from the workers that the configuration asks for."""
        self._config, self.feed = config, WorkerFeed(config, folder) if feed is None else feed
        self.lock: AbstractContextManager[Any] = threading.Lock()
        self.env = described(config, folder)
        self.workers = self.feed.workers
        self._state: dict[str, np.ndarray] | None = None
        self._newer: tuple[Artifact, int] | None = None
        self._started = False
        self._ready: queue.Queue[Message | Exception] = queue.Queue(maxsize=RELABELLED)
        self._over = threading.Event()

    def connect(self, policy: AnyPolicy, reward: RewardSource, rollout: Rollout) -> None:
        """See RolloutSource."""
        self._not_begun = Collector(policy, seed=self._config.runner.seed)
        self.feed.connect(policy, reward)

    def _start(self, trainer: Trainer) -> None:
        try:
            self.feed.start(weights_of(trainer), trainer.steps, self._state)
        except RefereeError as error:
            raise RefereeError(f"acting stopped: {error}") from error
        self._started = True
        if self._newer is not None:
            self.swap(*self._newer)
        self._thread = threading.Thread(target=self._relabel_all, args=(trainer,), name="relabel", daemon=True)
        self._thread.start()

    def _relabel_all(self, trainer: Trainer) -> None:
        """The thread: take what comes in, relabel it, and pass it on in the same order."""
        while not self._over.is_set():
            message = self.feed.get(PATIENCE)
            if message is None:
                continue
            if isinstance(message, RolloutBatch):
                try:
                    with self.lock:
                        trainer.relabel(message)
                except RefereeError as error:
                    message = ActingStopped(str(error))
                except Exception as error:  # it ends the run, not this thread alone
                    self._pass_on(error)
                    return
            self._pass_on(message)
            if isinstance(message, ActingStopped):
                return

    def _pass_on(self, message: Message | Exception) -> None:
        while not self._over.is_set():
            try:
                self._ready.put(message, timeout=BUSY)
                return
            except queue.Full:
                self.feed.keep_busy()

    def _take(self, *, wait: bool) -> RolloutBatch | ActingState | None:
        try:
            message = self._ready.get(block=wait)
        except queue.Empty:
            return None
        if isinstance(message, Exception):
            raise message
        if isinstance(message, ActingStopped):
            raise RefereeError(f"acting stopped: {message.reason}")
        return message

    def next(self, trainer: Trainer) -> list[RolloutBatch]:
        """All that has come in, at least one rollout."""
        if not self._started:
            self._start(trainer)
        batches: list[RolloutBatch] = []
        message = self._take(wait=True)
        while isinstance(message, RolloutBatch):
            batches.append(message)
            message = self._take(wait=False) if len(batches) < AT_ONCE else None
        self._taken = time.monotonic(), trainer.learner.updates
        return batches

    def pace(self, trainer: Trainer) -> Pace:
        """See RolloutSource."""
        every = self._config.runner.background.publish_interval
        return Pace(every, PIECES * every, lambda: self.feed.publish(weights_of(trainer)))

    def metrics(self, batches: Sequence[RolloutBatch], trainer: Trainer) -> dict[str, float]:
        """See RolloutSource."""
        now, updates = self._taken
        lags = {
            "lag_seconds": [now - batch.made for batch in batches],
            "policy_lag": [float(updates - batch.updates) for batch in batches],
        }
        metrics = {f"async/{name}": float(np.mean(values)) for name, values in lags.items()}
        metrics |= {f"async/{name}_max": max(values) for name, values in lags.items()}
        metrics["async/env_wait"] = float(np.mean([batch.waited for batch in batches]))
        return metrics | {"async/waiting": float(self.feed.waiting())}

    def swap(self, artifact: Artifact, version: int) -> None:
        """See RolloutSource."""
        self._newer = artifact, version
        if self._started:
            self.feed.swap(Packed.of(artifact), version)

    def pause(self, trainer: Trainer) -> tuple[list[RolloutBatch], dict[str, np.ndarray]]:
        """See RolloutSource; it is asked of those who act, and what came before is on its way still."""
        if not self._started:
            return [], self._state if self._state is not None else acting_state(self.env, self._not_begun)
        self.feed.ask_state()
        batches: list[RolloutBatch] = []
        while True:
            message = self._take(wait=True)
            if isinstance(message, ActingState):
                self._state = message.arrays
                return batches, message.arrays
            assert message is not None  # it was waited for
            batches.append(message)

    def restore_state(self, state: dict[str, np.ndarray]) -> None:
        """See RolloutSource."""
        self._state = state

    def close(self) -> None:
        """Stop those who act and the thread; none is left."""
        self._over.set()
        self.feed.close()
        if self._started:
            self._thread.join()
        self.env.env.close()
