"""The process that acts: it steps environments, draws what must be judged, and never waits for the learner."""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from referee import cpu
from referee.config import Config
from referee.config.learning import SACConfig
from referee.errors import RefereeError
from referee.models import Artifact
from referee.rewards import Scored
from referee.rl.policy import PolicySpec
from referee.rl.rollout import Rollout
from referee.rl.squashed import make_policy
from referee.runners.environments import make_env, make_reward
from referee.workers.env import EnvWorker, first_seed
from referee.workers.reward import Drawn, Looked
from referee.workers.rollout import RolloutWorker, acting_state, restore_acting

PATIENCE = 0.2
"""Seconds after which somebody who waits looks whether the other one is still there."""


@dataclass
class Delivery:
    """A rollout on its way from those who act to those who judge and learn."""

    rollout: Rollout
    drawn: Drawn | None
    """What a reward model looks at; None where the environment pays."""
    scored: Scored | None
    """What it said already, where its verdict ends episodes;"""
    looked: Looked | None
    """and what it found in those frames."""
    finished: dict[str, list[float]]
    """Statistics of the episodes that ended in it."""
    steps: int
    """Environment steps up to its end."""
    updates: int
    """Of the learner whose weights acted."""
    made: float
    """When, on the clock that all processes share."""
    waited: float
    """Share of the time since the last one in which the environments waited for others."""
    numbers: dict[str, float] = field(default_factory=dict)
    """What was found when it was judged."""


@dataclass(frozen=True)
class State:
    """What a checkpoint needs from those who act, between two rollouts."""

    arrays: dict[str, np.ndarray]


@dataclass(frozen=True)
class Failure:
    """Why the process ended."""

    reason: str


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


class Wishes:
    """What the learner wants: to stop, to know the state, or that another model judges."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._open: list[Any] = []
        self.stop = False

    def listen(self) -> None:
        """Hear what has come in; nothing is lost that is not answered at once."""
        while self._connection.poll():
            wish = self._connection.recv()
            if wish == "stop":
                self.stop = True
            else:
                self._open.append(wish)

    def take(self) -> list[Any]:
        """All that was heard since the last time."""
        found, self._open = self._open, []
        return found


def act(
    config: Config, folder: Path, spec: PolicySpec, weights: Weights, outbox: Any, wishes: Connection, start: int,
    state: dict[str, np.ndarray] | None,
) -> None:  # fmt: skip
    """The process: act until told to stop. start: steps that were done before. state: where to go on from."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the learner hears Ctrl-C, and tells us
    cpu.cap_if_needed()
    torch.set_num_threads(1)
    parent, heard = os.getppid(), Wishes(wishes)

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
    if os.getppid() != parent:
        outbox.cancel_join_thread()


def _act(
    config: Config, folder: Path, spec: PolicySpec, weights: Weights, wishes: Wishes, steps: int,
    state: dict[str, np.ndarray] | None, *, put: Callable[[object], bool], alone: Callable[[], bool],
) -> None:  # fmt: skip
    assert config.env.train is not None and isinstance(config.algorithm, SACConfig)
    seed, pace = config.runner.seed, config.runner.background.pace
    worker = EnvWorker(make_env(config.env.train, folder, "train"), seed=first_seed(seed))
    env = worker.env
    policy = make_policy(spec)
    roller = RolloutWorker(policy, seed=seed)
    rollout = Rollout(env, config.algorithm.rollout_steps, policy.inputs)
    reward = make_reward(config.reward, env, rollout.steps, hold=config.env.train.success_hold_steps)
    if state is not None:
        restore_acting(worker, roller, state)
    updates, size = weights.take(policy, -1), rollout.steps * rollout.num_envs
    began = before = time.monotonic()
    rounds, waited = 0, 0.0
    try:
        while not alone():
            wishes.listen()
            if wishes.stop:
                return
            for wish in wishes.take():
                if wish == "state":
                    put(State(acting_state(worker, roller)))
                elif reward is not None:  # (artifact, version): another model judges
                    reward.swap(Artifact.load(wish[0]), wish[1])
            asked = time.monotonic()
            updates = weights.take(policy, updates)
            waited += time.monotonic() - asked
            roller.collect(worker, rollout, reward, blind=steps < config.algorithm.random_steps)
            steps += size
            made = time.monotonic()
            judge = reward if reward is not None and reward.eager else None
            delivery = Delivery(
                rollout.copy(),
                None if reward is None else reward.drawn(),
                None if judge is None else judge.score(rollout),
                None if judge is None else judge.looked,
                worker.finished(), steps, updates, made, waited / max(made - before, 1e-9),
            )  # fmt: skip
            before, waited, rounds = made, 0.0, rounds + 1
            if not put(delivery):
                return
            waited += time.monotonic() - made
            if pace is not None:
                time.sleep(max(0.0, began + rounds * rollout.steps / pace - time.monotonic()))
    finally:
        env.close()
