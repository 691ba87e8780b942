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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from referee.config import Config
from referee.errors import RefereeError
from referee.learn.batch import RolloutBatch
from referee.learn.collector import Collector, acting_state
from referee.learn.source import described
from referee.learn.worker import ACTING
from referee.models import Artifact
from referee.models.packed import Packed
from referee.rewards.source import RewardSource
from referee.rl.learner import Pace
from referee.rl.rollout import Rollout
from referee.rl.squashed import AnyPolicy

if TYPE_CHECKING:
    from referee.learn.trainer import Trainer

PATIENCE = 0.2
"""Seconds after which somebody who waits looks whether the other one is still there."""
PIECES = 8
"""Times that weights are published in an iteration, at most; what is due beyond is given up: nothing piles up."""
AT_ONCE = 64
"""Rollouts that are taken in one iteration, at most."""


@dataclass(frozen=True)
class ActingState:
    """What a checkpoint needs from those who act, between two rollouts."""

    arrays: dict[str, np.ndarray]


@dataclass(frozen=True)
class Failure:
    """Why nobody acts any more."""

    reason: str


Message = RolloutBatch | ActingState | Failure


class Feed(Protocol):
    """Those who act in other processes: one on this machine, or several on a cluster."""

    workers: int
    relabelled_ahead: int
    """Rollouts that may wait to be learned from."""

    def connect(self, policy: AnyPolicy, reward: RewardSource) -> None:
        """Get ready."""

    def start(self, policy: AnyPolicy, updates: int, steps: int, state: dict[str, np.ndarray] | None) -> None:
        """Begin to act, from a saved state if there is one. updates: of the policy; steps: that were done before."""

    def get(self, timeout: float) -> Message | None:
        """What came next, in the order in which it was made; None if there is nothing yet."""

    def publish(self, policy: AnyPolicy, updates: int) -> None:
        """Let those who act use newer weights."""

    def swap(self, model: Packed, version: int) -> None:
        """Let another model score, where it is not this process that does."""

    def ask_state(self) -> None:
        """Let an ActingState come, after all that was made before it."""

    def waiting(self) -> int:
        """Rollouts that are made, and were not taken yet."""

    def saved(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What of a checkpoint is theirs."""

    def close(self) -> None:
        """Nobody acts any more."""


class AsyncSource:
    """A RolloutSource that is not in step: a thread relabels what comes in while the learner learns."""

    in_step = False

    def __init__(self, config: Config, folder: Path, feed: Feed) -> None:
        self._config, self.feed = config, feed
        self.lock: AbstractContextManager[Any] = threading.Lock()
        self.env = described(config, folder)
        self.workers = feed.workers
        assert config.env.train is not None
        self._steps = config.algorithm.rollout_steps * config.env.train.num_envs // self.workers
        self._state: dict[str, np.ndarray] | None = None
        self._newer: tuple[Artifact, int] | None = None
        self._started = False
        self._ready: queue.Queue[Message | Exception] = queue.Queue(maxsize=feed.relabelled_ahead)
        self._over = threading.Event()

    def connect(self, policy: AnyPolicy, reward: RewardSource, rollout: Rollout) -> None:
        """See RolloutSource."""
        self._not_begun = Collector(policy, seed=self._config.runner.seed)
        self.feed.connect(policy, reward)

    def _start(self, trainer: Trainer) -> None:
        self.feed.start(trainer.policy, trainer.learner.updates, trainer.steps, self._state)
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
                    message = Failure(str(error))
                except Exception as error:  # it ends the run, not this thread alone
                    self._pass_on(error)
                    return
            self._pass_on(message)
            if isinstance(message, Failure):
                return

    def _pass_on(self, message: Message | Exception) -> None:
        while not self._over.is_set():
            try:
                self._ready.put(message, timeout=PATIENCE)
                return
            except queue.Full:
                continue

    def _take(self, *, wait: bool) -> RolloutBatch | ActingState | None:
        try:
            message = self._ready.get(block=wait)
        except queue.Empty:
            return None
        if isinstance(message, Exception):
            raise message
        if isinstance(message, Failure):
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
        return batches

    def pace(self, trainer: Trainer) -> Pace:
        """See RolloutSource."""
        every = self._config.runner.background.publish_interval
        return Pace(every, PIECES * every, lambda: self.feed.publish(trainer.policy, trainer.learner.updates))

    def metrics(self, batches: Sequence[RolloutBatch], trainer: Trainer) -> dict[str, float]:
        """See RolloutSource."""
        now, updates = time.monotonic(), trainer.learner.updates
        lags = {
            "lag_seconds": [now - batch.made for batch in batches],
            "policy_lag": [float(updates - batch.updates) for batch in batches],
        }
        metrics = {f"async/{name}": float(np.mean(values)) for name, values in lags.items()}
        metrics |= {f"async/{name}_max": max(values) for name, values in lags.items()}
        metrics["async/env_wait"] = float(np.mean([batch.waited for batch in batches]))
        return metrics | {"async/waiting": float(self.feed.waiting() * self._steps)}

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
        self._state = self.feed.saved(state)

    def close(self) -> None:
        """Stop those who act and the thread; none is left."""
        self._over.set()
        self.feed.close()
        if self._started:
            self._thread.join()
        self.env.env.close()


def own_arrays(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What of a checkpoint is the only rollout worker's."""
    return {name: value for name, value in state.items() if name.startswith(ACTING)}


def room(config: Config) -> int:
    """Rollouts that may wait to be relabelled and remembered."""
    assert config.env.train is not None
    return max(1, config.runner.background.max_lag // (config.algorithm.rollout_steps * config.env.train.num_envs))
