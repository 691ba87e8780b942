"""Rollout workers that always have a rollout to make: one call is under way, the next waits behind it.

They are processes of this machine, or Ray actors; which, the cluster knows.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

import numpy as np

from referee.config import Config
from referee.errors import RefereeError
from referee.learn.batch import PolicyWeights, RolloutBatch
from referee.learn.source import (
    ContinuityCheck,
    check_workers,
    joined_states,
    launch_scorers,
    launch_workers,
    split_states,
)
from referee.models.packed import Packed
from referee.rewards.source import RewardSource
from referee.rl.squashed import AnyPolicy
from referee.runtime import Call, Cluster, Shared

LOOK = 0.02
"""Seconds that all workers together are waited for, before somebody looks whether the run is over."""


@dataclass(frozen=True)
class ActingState:
    """What a checkpoint needs from those who act, between two rollouts."""

    arrays: dict[str, np.ndarray]


@dataclass(frozen=True)
class ActingStopped:
    """Why nobody acts any more."""

    reason: str


Message = RolloutBatch | ActingState | ActingStopped


class WorkerFeed:
    """What rollout workers make, each with its share of the environments, in the order in which it is done."""

    AHEAD = 2

    def __init__(self, config: Config, folder: Path) -> None:
        self._config, self._folder = config, folder
        here = config.cluster.backend == "local"
        self.cluster = Cluster(replace(config.cluster, backend="process") if here else config.cluster)
        self._scores_here = here
        try:
            check_workers(self.cluster, config)
        except BaseException:
            self.cluster.close()
            raise
        self.workers = len(self.cluster.plan["env"])
        self._lines: list[deque[tuple[Call, bool]]] = [deque() for _ in range(self.workers)]
        """What each worker was asked, in order, and whether that is a rollout; else it is its state."""
        self._lock = threading.Lock()
        self._states: dict[int, dict[str, np.ndarray]] = {}
        self._continuity = ContinuityCheck()
        self._over = False
        assert config.env.train is not None
        self._size = config.algorithm.rollout_steps * config.env.train.num_envs // self.workers
        self._last = config.runner.max_steps
        self._turn = 0
        self._room = max(self.AHEAD, room(config))  # of each worker, whose rollouts have its share of the environments

    def connect(self, policy: AnyPolicy, reward: RewardSource) -> None:
        """Start the workers, and those who score where that is not done here."""
        try:
            self.group = launch_workers(self.cluster, self._config, self._folder, policy.spec)
            self.scorers = None if self._scores_here else launch_scorers(self.cluster, self._config, reward)
        except BaseException:
            self.cluster.close()
            raise
        self._cameras, self._ends_episodes = reward.cameras, reward.ends_episodes
        self._model: tuple[Shared, int] | None = None
        if reward.artifact is not None:
            self._model = self.group.share(Packed.of(reward.artifact)), reward.version

    def start(self, weights: PolicyWeights, steps: int, state: dict[str, np.ndarray] | None) -> None:
        """Begin to act, from a saved state if there is one. steps: that were done before."""
        if state is not None:
            for worker, own in enumerate(split_states(state, len(self.group))):
                self.group.on(worker).restore_state(own).wait()
        self.group.keep()
        self._steps = self._asked = steps
        self._weights = self.group.latest(weights)

    def publish(self, weights: PolicyWeights) -> None:
        """Let those who act use newer weights."""
        self._weights.set(weights)

    def swap(self, model: Packed, version: int) -> None:
        """Let another model score, where it is not this process that does."""
        self._model = self.group.share(model), version
        if self._ends_episodes:
            self.group.swap(*self._model).wait()

    def ask_state(self) -> None:
        """Let an ActingState come, after all that was asked for before."""
        with self._lock:
            for worker, line in enumerate(self._lines):
                line.append((self.group.on(worker).save_state(), False))

    def waiting(self) -> int:
        """Steps that are made, and were not taken yet."""
        return self._size * sum(call.done() for line in self._lines for call, makes in tuple(line) if makes)

    def get(self, timeout: float) -> Message | None:
        """What came next, in the order in which it was made; None if there is nothing yet."""
        end = time.monotonic() + timeout
        while not self._over:
            self.keep_busy()
            for turn in range(self.workers):
                worker = (self._turn + turn) % self.workers
                line = self._lines[worker]
                if line and line[0][0].done(LOOK / self.workers):
                    self._turn = worker + 1  # no worker waits for its turn because another one is quick
                    try:
                        found = self._take(worker, *line.popleft())
                    except RefereeError as error:
                        return ActingStopped(str(error))
                    if found is not None:
                        return found
            if time.monotonic() > end:
                return None
            if not any(self._lines):
                time.sleep(LOOK)
        return None

    def keep_busy(self) -> None:
        """Ask each worker for its next rollouts, as long as there is room; for none beyond the last step."""
        with self._lock:
            under_way = sum(makes for line in self._lines for _, makes in line)
            for worker, line in enumerate(self._lines):
                if not all(makes for _, makes in line):
                    continue  # a checkpoint waits for its state
                unanswered = len(list(takewhile(lambda asked: not asked[0].done(), reversed(line))))
                for _ in range(min(self.AHEAD - unanswered, self._room - len(line))):
                    if self._asked + under_way * self._size < self._last:
                        line.append((self.group.on(worker).collect(self._asked, self._weights), True))
                        under_way += 1

    def _take(self, worker: int, call: Call, makes: bool) -> RolloutBatch | ActingState | None:
        """What a worker has answered; its state only once all have told theirs."""
        (answer,) = call.shared()
        if not makes:
            self._states[worker] = answer.get()
            if len(self._states) < len(self._lines):
                return None
            found, self._states = [self._states[each] for each in range(len(self._lines))], {}
            return ActingState(joined_states(found))
        remote = None
        if self.scorers is not None and self._model is not None:
            scorer = self.scorers.on(worker % len(self.scorers))
            (remote,) = scorer.score(answer, self._cameras, *self._model).wait()
        batch: RolloutBatch = answer.get()
        batch.rollout = batch.rollout.copy()  # what came by reference cannot be written to
        self._continuity.look(batch)
        size = batch.rollout.steps * batch.rollout.num_envs
        self._steps, self._asked = self._steps + size, self._asked + size
        batch.steps, batch.remote = self._steps, remote
        return batch

    def close(self) -> None:
        """Nobody acts any more."""
        self._over = True
        self.cluster.close()


def room(config: Config) -> int:
    """Rollouts that may wait to be relabelled and remembered."""
    assert config.env.train is not None
    return max(1, config.runner.background.max_lag // (config.algorithm.rollout_steps * config.env.train.num_envs))
