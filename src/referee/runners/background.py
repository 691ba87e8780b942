"""A training in which environments, reward model and learner go on side by side.

    process: act ──rollouts and pictures──▶ thread: judge ──what is paid──▶ here: remember, learn
         ▲                                                                       │
         └────────────────────────── weights, every n updates ───────────────────┘

Environments never wait for the learner; only if more than `max_lag` steps wait to be judged and remembered do they.
"""

from __future__ import annotations

import queue
import threading
import time
from pathlib import Path

import numpy as np

from referee.config import Config
from referee.envs import RefereeVectorEnv
from referee.errors import RefereeError
from referee.models.packed import Packed
from referee.runners.collector import PATIENCE, CrewProcess, Failure, Source, State
from referee.runners.crew import ACTING
from referee.runners.environments import stand_in
from referee.runners.training import Training
from referee.workers.delivery import Delivery
from referee.workers.learner import LearnerWorker

PIECES = 8
"""Times that weights are published in an iteration, at most; what is due beyond is given up: nothing piles up."""


class BackgroundTraining(Training):
    """The same run as `Training`, with the same numbers and checkpoints; one iteration takes what has come in."""

    def __init__(self, config: Config, folder: Path = Path()) -> None:
        super().__init__(config, folder)
        assert isinstance(self.actor, LearnerWorker)
        self.learner = self.actor
        self._wanted = config.runner.background
        self._state: dict[str, np.ndarray] | None = None
        self._room = max(1, self._wanted.max_lag // (self.rollout.steps * self.rollout.num_envs))
        self._source = self._make_source()
        self._started = False
        self._model_guard = self._lock = threading.Lock()
        """Held by whoever uses the reward model."""
        self._ready: queue.Queue[Delivery | State | Failure | Exception] = queue.Queue(maxsize=4)
        self._over = threading.Event()

    def _make_env(self) -> RefereeVectorEnv:
        """Only to know its spaces and cameras: the process has environments of its own, which are recorded there."""
        train = self.config.env.train
        assert train is not None
        return stand_in(train, self.folder, "train")

    # --- those who act ---

    def _make_source(self) -> Source:
        return CrewProcess(self.config, self.folder, self._room)

    def _start(self) -> None:
        self._source.start(self.policy, self.learner.learner.updates, self.steps, self._state)
        self._started = True
        self._tell_version()
        self._judge = threading.Thread(target=self._judge_all, name="judge", daemon=True)
        self._judge.start()

    def _judge_all(self) -> None:
        """The thread: take what comes in, let the reward model judge it, and pass it on in the same order."""
        while not self._over.is_set():
            found = self._source.get(PATIENCE)
            if found is None:
                continue
            if isinstance(found, Delivery) and self.payment is not None:
                try:
                    self._judge_one(found)
                except RefereeError as error:
                    found = Failure(str(error))
                except Exception as error:  # it ends the run, not this thread alone
                    self._pass_on(error)
                    return
            self._pass_on(found)
            if isinstance(found, Failure):
                return

    def _judge_one(self, delivery: Delivery) -> None:
        assert self.payment is not None
        with self._lock:
            said = delivery.said
            if said is not None and said.version != self.payment.manager.version:
                said = None  # a better model has taken over meanwhile: it judges here
            self.payment.take(delivery, said)
            delivery.numbers = self.payment.pay(
                delivery.rollout, self.learner, delivery.steps, delivery.scored, who=delivery.who
            )

    def _pass_on(self, found: Delivery | State | Failure | Exception) -> None:
        while not self._over.is_set():
            try:
                self._ready.put(found, timeout=PATIENCE)
                return
            except queue.Full:
                continue

    def _next(self, *, wait: bool) -> Delivery | State | None:
        try:
            found = self._ready.get(block=wait)
        except queue.Empty:
            return None
        if isinstance(found, Exception):
            raise found
        if isinstance(found, Failure):
            raise RefereeError(f"acting stopped: {found.reason}")
        return found

    # --- learning ---

    def iterate(self) -> dict[str, float]:
        """Remember all that has come in, at least one rollout, and learn as much as it allows."""
        start = time.perf_counter()
        if not self._started:
            self._start()
        taken: list[Delivery] = []
        found = self._next(wait=True)
        while isinstance(found, Delivery):
            self._remember_one(found)
            taken.append(found)
            found = self._next(wait=False) if len(taken) < 64 else None
        self._pay_anew(taken)
        idle = time.perf_counter() - start
        learned = self._learn()
        end = time.perf_counter()
        self.iteration += 1
        count = sum(each.rollout.steps * each.rollout.num_envs for each in taken)
        self.steps += count
        self.seconds += end - start
        return self._told(self._numbers(taken, learned, idle, end - start), count / (end - start))

    def _remember_one(self, delivery: Delivery) -> None:
        """Take a rollout in."""
        self.learner.remember(delivery.rollout, delivery.who * delivery.rollout.num_envs)
        delivery.numbers["async/lag_seconds"] = time.monotonic() - delivery.made
        delivery.numbers["async/policy_lag"] = float(self.learner.learner.updates - delivery.updates)

    def _pay_anew(self, taken: list[Delivery]) -> None:
        """What was on its way while a better model took over was paid by the old one: no two are mixed."""
        if self.verdicts is None:
            return
        version = self.verdicts.manager.version
        if any((each.rollout.versions != version).any() for each in taken):
            with self._lock:
                self.learner.rescore(self.verdicts.reward)

    def _learn(self) -> dict[str, float]:
        """As many updates as are due, in pieces after each of which new weights are published."""
        each = self._wanted.publish_interval
        due = self.learner.due(most=PIECES * each)
        learned = {"lr": self.learner.learner.set_rate(min(1.0, self.steps / self.config.runner.max_steps))}
        for done in range(0, due, each):
            learned |= self.learner.learn(min(each, due - done))
            self._source.publish(self.policy, self.learner.learner.updates)
        return {**learned, **self.learner.memory()}

    def _numbers(
        self, taken: list[Delivery], learned: dict[str, float], idle: float, seconds: float
    ) -> dict[str, float]:
        numbers: dict[str, float] = {}
        for name in taken[0].finished:
            values = [value for each in taken for value in each.finished[name]]
            if values:
                numbers[f"env/{name}"] = float(np.mean(values))
        numbers["rollout/rewards"] = float(np.mean([each.rollout.rewards.mean() for each in taken]))
        for name in sorted({name for each in taken for name in each.numbers}):
            numbers[name] = float(np.mean([each.numbers[name] for each in taken if name in each.numbers]))
        for name in ("async/lag_seconds", "async/policy_lag"):
            numbers[f"{name}_max"] = max(each.numbers[name] for each in taken)
        numbers["async/env_wait"] = float(np.mean([each.waited for each in taken]))
        numbers["async/waiting"] = float(self._source.waiting() * self.rollout.steps * self.rollout.num_envs)
        numbers["async/utd"] = self.learner.learner.updates / max(1, self.steps)
        numbers |= {f"train/{name}": float(value) for name, value in learned.items()}
        return {**numbers, "time/rollout": idle, "time/update": seconds - idle}

    def _refine(self) -> dict[str, float]:
        """As always; meanwhile nobody judges. Those who judge on their own are told of a better model."""
        with self._lock:
            before = None if self.payment is None else self.payment.manager.version
            numbers = super()._refine()
        if self.payment is not None and self.payment.manager.version != before and self._started:
            self._tell_version()
        return numbers

    def _tell_version(self) -> None:
        """Let the process judge with the model that judges here, where a verdict ends episodes."""
        payment = self.verdicts
        if payment is not None and payment.refiner is not None and payment.manager.version:
            self._source.swap(Packed.of(payment.manager.artifact), payment.manager.version)

    # --- keeping ---

    def _acting_state(self) -> dict[str, np.ndarray]:
        """Asked of the process; everything that came before is remembered first, so that all fits together."""
        if not self._started:
            return self._state if self._state is not None else super()._acting_state()
        self._source.ask_state()
        while True:
            found = self._next(wait=True)
            if isinstance(found, State):
                self._state = found.arrays
                return found.arrays
            if isinstance(found, Delivery):
                self._remember_one(found)
                self._pay_anew([found])
                self.steps += found.rollout.steps * found.rollout.num_envs

    def _restore_acting(self, state: dict[str, np.ndarray]) -> None:
        self._state = {name: value for name, value in state.items() if name.startswith(ACTING)}

    def close(self) -> None:
        """Stop those who act and the thread; none is left."""
        self._over.set()
        self._source.close()
        if self._started:
            self._judge.join()
        super().close()
