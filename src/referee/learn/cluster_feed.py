"""Rollout workers on a cluster that always have a rollout to make: one call is under way, the next waits behind it."""

from __future__ import annotations

import threading
import time
from collections import deque
from pathlib import Path

import numpy as np

from referee.config import Config
from referee.errors import RefereeError
from referee.learn.asynchronous import ActingState, Failure, Message, room
from referee.learn.batch import RolloutBatch
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

LOOK = 0.002
"""Seconds between looks whether a worker has answered."""


class ClusterFeed:
    """A Feed: rollout workers that a cluster places, each with its share of the environments."""

    AHEAD = 2

    def __init__(self, config: Config, folder: Path) -> None:
        self._config, self._folder = config, folder
        self.cluster = Cluster(config.cluster)
        try:
            check_workers(self.cluster, config)
        except BaseException:
            self.cluster.close()
            raise
        self.workers, self.relabelled_ahead = len(self.cluster.plan["env"]), max(4, room(config))
        self._lines: list[deque[tuple[Call, int | None]]] = [deque() for _ in range(self.workers)]
        """What each worker was asked, in order, with the updates of the weights of a rollout; a state has none."""
        self._lock = threading.Lock()
        self._states: dict[int, dict[str, np.ndarray]] = {}
        self._continuity = ContinuityCheck()
        self._over = False
        assert config.env.train is not None
        self._size = config.algorithm.rollout_steps * config.env.train.num_envs // self.workers
        self._last = config.runner.max_steps

    def connect(self, policy: AnyPolicy, reward: RewardSource) -> None:
        """See Feed."""
        try:
            self.group = launch_workers(self.cluster, self._config, self._folder, policy.spec)
            self.scorers = launch_scorers(self.cluster, self._config, reward)
        except BaseException:
            self.cluster.close()
            raise
        self._cameras = reward.cameras
        self._model: tuple[Shared, int] | None = None
        if reward.artifact is not None:
            self._model = self.group.share(Packed.of(reward.artifact)), reward.version

    def saved(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """See Feed."""
        return joined_states(split_states(state, self.workers))

    def start(self, policy: AnyPolicy, updates: int, steps: int, state: dict[str, np.ndarray] | None) -> None:
        """See Feed."""
        if state is not None:
            for worker, own in enumerate(split_states(state, len(self.group))):
                self.group.on(worker).restore_state(own).wait()
        self.group.keep()
        self._steps = self._asked = steps
        self.publish(policy, updates)

    def publish(self, policy: AnyPolicy, updates: int) -> None:
        """See Feed."""
        weights = {name: value.numpy().copy() for name, value in policy.state_dict().items()}
        self._weights = self.group.share(weights), updates

    def swap(self, model: Packed, version: int) -> None:
        """See Feed."""
        self._model = self.group.share(model), version
        if self.scorers is None:
            self.group.swap(*self._model).wait()

    def ask_state(self) -> None:
        """See Feed."""
        with self._lock:
            for worker, line in enumerate(self._lines):
                line.append((self.group.on(worker).save_state(), None))

    def waiting(self) -> int:
        """See Feed."""
        return sum(call.done() for line in self._lines for call, updates in tuple(line) if updates is not None)

    def get(self, timeout: float) -> Message | None:
        """See Feed."""
        end = time.monotonic() + timeout
        while not self._over:
            self._fill()
            for worker, line in enumerate(self._lines):
                if line and line[0][0].done():
                    try:
                        found = self._take(worker, *line.popleft())
                    except RefereeError as error:
                        return Failure(str(error))
                    if found is not None:
                        return found
            if time.monotonic() > end:
                return None
            time.sleep(LOOK)
        return None

    def _fill(self) -> None:
        """Ask each worker for its next rollouts, with the newest weights; for none beyond the last step."""
        with self._lock:
            weights, updates = self._weights
            under_way = sum(updates is not None for line in self._lines for _, updates in line)
            for worker, line in enumerate(self._lines):
                while len(line) < self.AHEAD and self._asked + under_way * self._size < self._last:
                    line.append((self.group.on(worker).collect(self._asked, weights), updates))
                    under_way += 1

    def _take(self, worker: int, call: Call, updates: int | None) -> RolloutBatch | ActingState | None:
        """What a worker has answered; its state only once all have told theirs."""
        (answer,) = call.shared()
        if updates is None:
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
        batch.steps, batch.updates, batch.remote = self._steps, updates, remote
        return batch

    def close(self) -> None:
        """See Feed."""
        self._over = True
        self.cluster.close()
