"""A training whose crews and judges are placed on the nodes of a cluster: in this process, or under Ray.

    crews: act ──rollouts, pictures by reference──▶ judges: look ──verdicts──▶ here: pay, learn, refine
      ▲                                                                          │
      └──────────────────────── weights, every rollout ─────────────────────────┘

What a dead worker was asked is asked again of the one that takes its place. A crew begins from the state that it had
when a checkpoint was last written; a judge needs none. Only what has come back is paid, and it is paid once.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from referee.config import Config
from referee.config.imports import import_modules
from referee.config.schema import RewardModelConfig
from referee.envs import RefereeVectorEnv
from referee.envs.contract import Observation
from referee.errors import ConfigError, RefereeError
from referee.models.packed import Packed
from referee.rewards import RewardOptions
from referee.rl.checkpoint import CheckpointError
from referee.rl.policy import PolicySpec
from referee.rl.rollout import Rollout
from referee.rl.squashed import AnyPolicy
from referee.runners.background import BackgroundTraining
from referee.runners.collector import Failure, Source, State
from referee.runners.crew import ACTING, Crew
from referee.runners.environments import stand_in
from referee.runners.payment import Payment
from referee.runners.training import Training
from referee.runners.trends import TrendPayment
from referee.runtime import Call, Cluster, Fallback, Group, Rank, Shared, WorkerGroup
from referee.workers.delivery import Delivery, Said
from referee.workers.judge import JudgeWorker

SUMS = ("reward/judged", "reward/windows", "time/alarm")
"""What the rollouts of several crews add up to; of all else, the mean is told."""
LOOK = 0.002
"""Seconds between looks whether a crew has answered."""
_log = logging.getLogger(__name__)


class PlacedTraining(Training):
    """The same run as `Training`, with the same numbers and checkpoints."""

    def __init__(self, config: Config, folder: Path = Path()) -> None:
        began = time.perf_counter()
        self._cluster = Cluster(config.cluster)
        try:
            check_crews(self._cluster, config)
            super().__init__(config, folder)
            self._crews = launch_crews(self._cluster, config, folder, self.policy.spec)
            self._judges = launch_judges(self._cluster, config, self.payment)
        except BaseException:
            self._cluster.close()
            raise
        self._finished: dict[str, list[float]] = {}
        self._model: tuple[int, Shared] | None = None
        self._continuity = Continuity()
        self.seconds = time.perf_counter() - began

    def _crews_wanted(self) -> int:
        return len(self._cluster.plan["env"])

    def _make_env(self) -> RefereeVectorEnv:
        """Only to know its spaces, cameras and first states: the crews have environments of their own."""
        train = self.config.env.train
        assert train is not None
        return stand_in(train, self.folder, "train")

    # --- an iteration ---

    def _collect(self, step: int) -> dict[str, float]:
        weights = self._crews.share({name: value.numpy() for name, value in self.policy.state_dict().items()})
        made = self._crews.collect(self.steps, weights).shared()
        said = self._ask(made)
        deliveries: list[Delivery] = [each.get() for each in made]
        self._finished = {
            name: [value for each in deliveries for value in each.finished[name]] for name in deliveries[0].finished
        }
        rollouts = [each.rollout.copy() for each in deliveries]  # what came by reference cannot be written to
        for who, rollout in enumerate(rollouts):
            self._continuity.look(who, rollout)
        found = [
            self._pay(who, rollout, delivery, verdict, step)
            for who, (rollout, delivery, verdict) in enumerate(zip(rollouts, deliveries, said, strict=True))
        ]
        self.rollout = Rollout.joined(rollouts)
        return {
            name: float((np.sum if name in SUMS else np.mean)([each[name] for each in found if name in each]))
            for name in found[0]
        }

    def _ask(self, made: list[Shared]) -> list[Said | None]:
        """What the judges say of each rollout; the pictures go from the crews to them, and not through here."""
        if self._judges is None:
            return [None] * len(made)
        assert self.payment is not None
        version, model = self._packed()
        calls = [
            self._judges.on(number % len(self._judges)).judge(each, self.payment.reward.cameras, model, version)
            for number, each in enumerate(made)
        ]
        return [call.wait()[0] for call in calls]

    def _pay(self, who: int, rollout: Rollout, delivery: Delivery, said: Said | None, step: int) -> dict[str, float]:
        if self.payment is None:
            return {}
        version = self.payment.manager.version
        if said is not None and said.version != version:
            raise RefereeError(f"a judge answered with version {said.version} of the model, not {version}")
        self.payment.take(delivery, said)
        return self.payment.pay(rollout, self.actor, step, delivery.scored, who=who)

    def _packed(self) -> tuple[int, Shared]:
        """The model that judges now, where all workers can read it."""
        assert self.verdicts is not None
        version = self.verdicts.manager.version
        if self._model is None or self._model[0] != version:
            self._model = version, self._crews.share(Packed.of(self.verdicts.manager.artifact))
        return self._model

    def _statistics(self) -> dict[str, float]:
        return {name: float(np.mean(values)) for name, values in self._finished.items() if values}

    def _refine(self) -> dict[str, float]:
        """As always; crews that judge by themselves are told of a better model."""
        before = None if self.payment is None else self.payment.manager.version
        numbers = super()._refine()
        if self.payment is not None and self.payment.reward.eager and self.payment.manager.version != before:
            self._tell_version()
        return numbers

    def _tell_version(self) -> None:
        version, model = self._packed()
        self._crews.swap(model, version).wait()

    # --- keeping ---

    def _acting_state(self) -> dict[str, np.ndarray]:
        self._crews.keep()
        return joined_states(self._crews.save_state().wait())

    def _restore_acting(self, state: dict[str, np.ndarray]) -> None:
        for who, own in enumerate(split_states(state, len(self._crews))):
            self._crews.on(who).restore_state(own).wait()
        self._crews.keep()

    def resume(self, place: Path) -> int:
        """Go on from a checkpoint, exactly; returns its step."""
        step = super().resume(place)
        if self.payment is not None and self.payment.reward.eager and self.payment.manager.version:
            self._tell_version()
        return step

    def close(self) -> None:
        """Close the environments, and end all workers."""
        try:
            super().close()
        finally:
            self._cluster.close()


class PlacedBackground(BackgroundTraining):
    """Acting, judging and learning side by side, as `BackgroundTraining`, with crews and judges on a cluster."""

    def __init__(self, config: Config, folder: Path = Path()) -> None:
        began = time.perf_counter()
        self._cluster = Cluster(config.cluster)
        try:
            check_crews(self._cluster, config)
            super().__init__(config, folder)
        except BaseException:
            self._cluster.close()
            raise
        self._ready = queue.Queue(maxsize=max(4, self._room))
        self.seconds = time.perf_counter() - began

    def _crews_wanted(self) -> int:
        return len(self._cluster.plan["env"])

    def _make_source(self) -> Source:
        return PlacedCrews(self._cluster, self.config, self.folder, self.policy.spec, self.payment)

    def _restore_acting(self, state: dict[str, np.ndarray]) -> None:
        self._state = joined_states(split_states(state, self._crews_wanted()))

    def close(self) -> None:
        """Stop those who act and the thread, and end all workers."""
        try:
            super().close()
        finally:
            self._cluster.close()


class PlacedCrews:
    """Crews that always have a rollout to make: a call is under way, and the next one waits behind it."""

    AHEAD = 2

    def __init__(
        self, cluster: Cluster, config: Config, folder: Path, spec: PolicySpec, payment: Payment | TrendPayment | None
    ) -> None:
        self._crews = launch_crews(cluster, config, folder, spec)
        self._judges = launch_judges(cluster, config, payment)
        self._cameras = () if payment is None else payment.reward.cameras
        self._model: tuple[Shared, int] | None = None
        if isinstance(payment, Payment):
            self._model = self._crews.share(Packed.of(payment.manager.artifact)), payment.manager.version
        self._lines: list[deque[tuple[Call, int | None]]] = [deque() for _ in range(len(self._crews))]
        """What each crew was asked, in order, with the updates of the weights of a rollout; a state has none."""
        self._lock = threading.Lock()
        self._states: dict[int, dict[str, np.ndarray]] = {}
        self._continuity = Continuity()
        self._over = False
        assert config.env.train is not None
        self._size = config.algorithm.rollout_steps * config.env.train.num_envs // len(self._crews)
        self._last = config.runner.max_steps

    def start(self, policy: AnyPolicy, updates: int, steps: int, state: dict[str, np.ndarray] | None) -> None:
        """See Source."""
        if state is not None:
            for who, own in enumerate(split_states(state, len(self._crews))):
                self._crews.on(who).restore_state(own).wait()
        self._crews.keep()
        self._steps = self._asked = steps
        self.publish(policy, updates)

    def publish(self, policy: AnyPolicy, updates: int) -> None:
        """See Source."""
        weights = {name: value.numpy().copy() for name, value in policy.state_dict().items()}
        self._weights = self._crews.share(weights), updates

    def swap(self, model: Packed, version: int) -> None:
        """See Source."""
        self._model = self._crews.share(model), version
        if self._judges is None:
            self._crews.swap(*self._model).wait()

    def ask_state(self) -> None:
        """See Source."""
        with self._lock:
            for who, line in enumerate(self._lines):
                line.append((self._crews.on(who).save_state(), None))

    def waiting(self) -> int:
        """See Source."""
        return sum(call.done() for line in self._lines for call, updates in tuple(line) if updates is not None)

    def get(self, timeout: float) -> Delivery | State | Failure | None:
        """See Source."""
        end = time.monotonic() + timeout
        while not self._over:
            self._fill()
            for who, line in enumerate(self._lines):
                if line and line[0][0].done():
                    try:
                        found = self._take(who, *line.popleft())
                    except RefereeError as error:
                        return Failure(str(error))
                    if found is not None:
                        return found
            if time.monotonic() > end:
                return None
            time.sleep(LOOK)
        return None

    def _fill(self) -> None:
        """Ask each crew for its next rollouts, with the newest weights; for none beyond the last step."""
        with self._lock:
            weights, updates = self._weights
            under_way = sum(updates is not None for line in self._lines for _, updates in line)
            for who, line in enumerate(self._lines):
                while len(line) < self.AHEAD and self._asked + under_way * self._size < self._last:
                    line.append((self._crews.on(who).collect(self._asked, weights), updates))
                    under_way += 1

    def _take(self, who: int, call: Call, updates: int | None) -> Delivery | State | None:
        """What a crew has answered; its state only once all have told theirs."""
        (answer,) = call.shared()
        if updates is None:
            self._states[who] = answer.get()
            if len(self._states) < len(self._lines):
                return None
            found, self._states = [self._states[each] for each in range(len(self._lines))], {}
            return State(joined_states(found))
        said = None
        if self._judges is not None and self._model is not None:
            said = self._judges.on(who % len(self._judges)).judge(answer, self._cameras, *self._model).wait()[0]
        made: Delivery = answer.get()
        rollout = made.rollout.copy()  # what came by reference cannot be written to
        self._continuity.look(who, rollout)
        size = rollout.steps * rollout.num_envs
        self._steps, self._asked = self._steps + size, self._asked + size
        return replace(made, rollout=rollout, steps=self._steps, updates=updates, said=said, numbers={})

    def close(self) -> None:
        """See Source; the cluster ends the workers."""
        self._over = True


class Continuity:
    """Knows what each crew saw last, and so whether its next rollout goes on from there."""

    def __init__(self) -> None:
        self._last: dict[int, Observation] = {}

    def look(self, who: int, rollout: Rollout) -> None:
        """Say of a rollout whether it goes on where the last one of its crew ended."""
        last = self._last.get(who, {})
        rollout.goes_on = all(np.array_equal(rollout.observations[name][0], last[name]) for name in last)
        self._last[who] = {name: rollout.last[name] for name in rollout.observations}


def check_crews(cluster: Cluster, config: Config) -> None:
    """Whether the environments can be shared among the crews."""
    assert config.env.train is not None
    learners = cluster.plan.ranks.get("actor", ())
    if len(learners) > 1 or any(rank.node for rank in learners):
        _log.warning("cluster.component_placement.actor: one learner, in this process, is all that is used")
    crews, envs = len(cluster.plan["env"]), config.env.train.num_envs
    if envs % crews:
        raise ConfigError(
            f"env.train.num_envs={envs} environments cannot be shared among {crews} env workers "
            f"(cluster.component_placement): use a multiple of {crews}"
        )


def launch_crews(cluster: Cluster, config: Config, folder: Path, spec: PolicySpec) -> Group:
    """Those who act."""
    fallback = Fallback(retry=("collect", "save_state"))
    return WorkerGroup(make_crew, config, folder, spec, fallback=fallback).launch(cluster, "env")


def launch_judges(cluster: Cluster, config: Config, payment: Payment | TrendPayment | None) -> Group | None:
    """None where nobody is paid by a model, or where its verdict is needed at once: then the crews judge."""
    if isinstance(payment, TrendPayment):
        if "reward" in (config.cluster.component_placement or {}):
            _log.warning("cluster.component_placement.reward: windows are judged in the process of the run")
        return None
    if payment is None or payment.reward.eager:
        return None
    model = config.reward.model
    assert isinstance(model, RewardModelConfig)
    how = WorkerGroup(
        make_judge, config.runner.imports, payment.reward.options, backend=model.backend, int8=model.int8,
        threads=config.actor.num_threads or os.cpu_count() or 1, fallback=Fallback(retry=("judge",)),
    )  # fmt: skip
    return how.launch(cluster, "reward")


def make_crew(rank: Rank, config: Config, folder: Path, spec: PolicySpec) -> Crew:
    """The crew of a rank."""
    torch.set_num_threads(1)
    return Crew(config, folder, spec, rank=rank.rank, of=rank.world_size)


def make_judge(rank: Rank, imports: Sequence[str], options: RewardOptions, **how: Any) -> JudgeWorker:
    """The judge of a rank; all are alike. imports: modules that register models of one's own."""
    import_modules(imports)
    return JudgeWorker(options, **how)


def joined_states(states: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The states of all crews, as a checkpoint keeps them."""
    return {_own(who) + name: value for who, state in enumerate(states) for name, value in state.items()}


def split_states(state: Mapping[str, np.ndarray], crews: int) -> list[dict[str, np.ndarray]]:
    """The inverse, out of all that a checkpoint keeps."""
    saved = 1
    while any(name.startswith(_own(saved)) for name in state):
        saved += 1
    if saved != crews:
        raise CheckpointError(
            f"this run had {saved} env workers, not {crews}: set cluster.component_placement.env as it was"
        )
    return [
        {name.removeprefix(own): state[name] for name in state if name.startswith(tuple(own + each for each in ACTING))}
        for own in map(_own, range(saved))
    ]


def _own(who: int) -> str:
    """What the names of a crew's state begin with; the first one's are those of a run without crews."""
    return f"crew{who}." if who else ""
