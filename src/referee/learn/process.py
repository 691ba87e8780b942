"""A rollout worker in a process of its own: it acts, draws what must be scored, and never waits for the learner."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from referee import cpu
from referee.config import Config
from referee.errors import RefereeError
from referee.learn.asynchronous import PATIENCE, ActingState, Failure, Message, own_arrays, room
from referee.learn.worker import RolloutWorker
from referee.models.packed import Packed
from referee.processes import SIGNALS
from referee.rewards.source import RewardSource
from referee.rl.policy import PolicySpec
from referee.rl.squashed import AnyPolicy

STOPPING = 20.0
"""Seconds that the process has to end by itself."""


class Weights:
    """The policy's weights in memory that processes share: published by one, taken by the other, never half of them."""

    def __init__(self, context: Any, policy: torch.nn.Module) -> None:
        self._array = context.Array("d", 1 + sum(each.numel() for each in policy.state_dict().values()))

    def publish(self, policy: torch.nn.Module, updates: int) -> None:
        """Let others act with these weights."""
        flat = torch.cat([each.detach().double().reshape(-1) for each in policy.state_dict().values()]).numpy()
        with self._array.get_lock():
            view = np.frombuffer(self._array.get_obj())
            view[0], view[1:] = updates, flat

    def take(self, policy: torch.nn.Module, known: int) -> int:
        """Put newer weights than those of `known` updates into the policy; returns of how many updates it now is."""
        with self._array.get_lock():
            view = np.frombuffer(self._array.get_obj())
            updates = int(view[0])
            if updates == known:
                return known
            flat = torch.from_numpy(view[1:].copy())
        start, tensors = 0, {}
        for name, each in policy.state_dict().items():
            tensors[name] = flat[start : start + each.numel()].view(each.shape).to(each.dtype)
            start += each.numel()
        policy.load_state_dict(tensors)
        return updates


class ControlPipe:
    """What the learner asks for: to stop, to know the state, or that another model scores."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._open: list[Any] = []
        self.stop = False
        self.gone = False
        """Whether the learner has died: nobody takes anything any more."""

    def listen(self) -> None:
        """Hear what has come in; nothing is lost that is not answered at once."""
        while not self.gone and self._connection.poll():
            try:
                wish = self._connection.recv()
            except (EOFError, ConnectionError):  # before the system has given us another parent
                self.stop = self.gone = True
                return
            if wish == "stop":
                self.stop = True
            else:
                self._open.append(wish)

    def take(self) -> list[Any]:
        """All that was heard since the last time."""
        found, self._open = self._open, []
        return found


class ProcessFeed:
    """A Feed: one rollout worker in a process of its own, on this machine."""

    workers, relabelled_ahead = 1, 4

    def __init__(self, config: Config, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._context = multiprocessing.get_context("spawn")
        self._inbox = self._context.Queue(maxsize=room(config))
        self._wishes, self._theirs = self._context.Pipe()
        self._process: Any = None

    def connect(self, policy: AnyPolicy, reward: RewardSource) -> None:
        """See Feed; the process is not there before somebody wants a rollout."""

    def saved(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """See Feed."""
        return own_arrays(state)

    def start(self, policy: AnyPolicy, updates: int, steps: int, state: dict[str, np.ndarray] | None) -> None:
        """See Feed."""
        self._weights = Weights(self._context, policy)
        self._weights.publish(policy, updates)
        self._process = self._context.Process(
            target=act, name="referee-act",
            args=(self._config, self._folder, policy.spec, self._weights, self._inbox, self._theirs, steps, state),
        )  # fmt: skip
        self._process.start()

    def get(self, timeout: float) -> Message | None:
        """See Feed."""
        try:
            found: Message = self._inbox.get(timeout=timeout)
            return found
        except queue.Empty:
            if not self._process.is_alive() and self._inbox.empty():
                return Failure(f"the process that acts ended with code {self._process.exitcode}")
            return None

    def publish(self, policy: AnyPolicy, updates: int) -> None:
        """See Feed."""
        self._weights.publish(policy, updates)

    def swap(self, model: Packed, version: int) -> None:
        """See Feed."""
        self._wishes.send((model, version))

    def ask_state(self) -> None:
        """See Feed."""
        self._wishes.send("state")

    def waiting(self) -> int:
        """See Feed."""
        return self._inbox.qsize()

    def close(self) -> None:
        """See Feed."""
        if self._process is None:
            return
        self._wishes.send("stop")
        end = time.monotonic() + STOPPING
        while self._process.is_alive() and time.monotonic() < end:
            try:
                self._inbox.get(timeout=PATIENCE)  # so that it is not held up by what nobody takes
            except queue.Empty:
                continue
        if self._process.is_alive():
            self._process.kill()
        self._process.join()


def act(
    config: Config, folder: Path, spec: PolicySpec, weights: Weights, outbox: Any, wishes: Connection, start: int,
    state: dict[str, np.ndarray] | None,
) -> None:  # fmt: skip
    """The process: act until told to stop, or `runner.max_steps` are made.

    start: steps that were done before. state: where to go on from.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the learner hears Ctrl-C, and tells us
    cpu.cap_if_needed()
    torch.set_num_threads(1)
    parent, heard = os.getppid(), ControlPipe(wishes)

    def put(message: object) -> bool:
        """Send; False once nobody is there any more who would take it."""
        while True:
            try:
                outbox.put(message, timeout=PATIENCE)
                return True
            except queue.Full:
                heard.listen()
                if os.getppid() != parent or heard.stop:
                    return False

    try:
        _act(config, folder, spec, weights, heard, start, state, put=put, alone=lambda: os.getppid() != parent)
    except Exception as error:  # told to the learner, which ends the run with one line
        put(Failure(str(error) if isinstance(error, RefereeError) else f"{type(error).__name__}: {error}"))
    if heard.gone or os.getppid() != parent:
        outbox.cancel_join_thread()


def _act(
    config: Config, folder: Path, spec: PolicySpec, weights: Weights, wishes: ControlPipe, steps: int,
    state: dict[str, np.ndarray] | None, *, put: Callable[[object], bool], alone: Callable[[], bool],
) -> None:  # fmt: skip
    worker = RolloutWorker(config, folder, spec)
    if state is not None:
        worker.restore_state(state)
    updates = weights.take(worker.policy, -1)
    try:
        while not alone():
            wishes.listen()
            if wishes.stop:
                return
            for wish in wishes.take():
                if wish == "state":
                    put(ActingState(worker.save_state()))
                else:
                    worker.swap(*wish)
            if steps >= config.runner.max_steps:  # all that is wanted is on its way
                time.sleep(PATIENCE / 10)
                continue
            updates = weights.take(worker.policy, updates)
            batch = worker.collect(steps)
            steps, batch.updates = batch.steps, updates
            if not put(batch):
                return
    finally:
        worker.close()
