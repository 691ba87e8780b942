"""Where rollouts come from: environments in this process, or rollout workers elsewhere that a cluster places."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from referee.config import Config
from referee.config.imports import import_modules
from referee.config.learning import SACConfig
from referee.config.schema import RewardModelConfig
from referee.envs import RefereeVectorEnv
from referee.envs.contract import Observation
from referee.errors import ConfigError, RefereeError
from referee.learn.batch import PolicyWeights, RolloutBatch
from referee.learn.collector import Collector, acting_state, restore_acting
from referee.learn.environments import make_env, stand_in
from referee.learn.scoring_worker import ScoringWorker
from referee.learn.worker import ACTING, RolloutWorker
from referee.models import Artifact
from referee.models.packed import Packed
from referee.rewards import RewardOptions
from referee.rewards.source import RewardSource
from referee.rl.checkpoint import CheckpointError
from referee.rl.learner import Pace
from referee.rl.policy import PolicySpec
from referee.rl.rollout import Rollout
from referee.rl.squashed import AnyPolicy
from referee.runtime import Cluster, Fallback, Group, Rank, Shared, WorkerGroup
from referee.workers.env import EnvWorker, first_seed

if TYPE_CHECKING:
    from referee.learn.trainer import Trainer

_log = logging.getLogger(__name__)


class RolloutSource(Protocol):
    """Makes rollouts for a Trainer. In this process, in others and on a cluster, the Trainer is the same."""

    in_step: bool
    """Whether all act, then all learn; else acting and learning go on side by side."""
    workers: int
    """Of equally many environments each."""
    env: EnvWorker
    """The environments; one that looks like them, where they are elsewhere."""
    lock: AbstractContextManager[Any]
    """Held by whoever uses the reward model."""

    def connect(self, policy: AnyPolicy, reward: RewardSource, rollout: Rollout) -> None:
        """Get ready to act with this policy; nothing is drawn but what the reward needs.

        rollout: to be filled again and again, where nobody reads it meanwhile.
        """

    def next(self, trainer: Trainer) -> list[RolloutBatch]:
        """The next rollouts, at least one; those that have metrics are relabelled already."""
        ...

    def pace(self, trainer: Trainer) -> Pace | None:
        """How often the learner has to publish weights; None where the next rollout takes them anyway."""
        ...

    def metrics(self, batches: Sequence[RolloutBatch], trainer: Trainer) -> dict[str, float]:
        """How acting and learning keep up with each other, under log names."""
        ...

    def swap(self, artifact: Artifact, version: int) -> None:
        """Let another model score from now on, wherever one does."""

    def pause(self, trainer: Trainer) -> tuple[list[RolloutBatch], dict[str, np.ndarray]]:
        """For a checkpoint: rollouts that were on their way, and the state of those who act after them."""
        ...

    def restore_state(self, state: dict[str, np.ndarray]) -> None:
        """Go on from what a checkpoint kept."""

    def close(self) -> None:
        """Nobody acts any more."""


class InlineSource:
    """Environments in this process, which act while nothing learns."""

    in_step, workers = True, 1

    def __init__(self, config: Config, folder: Path) -> None:
        assert config.env.train is not None
        self._config = config
        self.lock: AbstractContextManager[Any] = nullcontext()
        self.env = EnvWorker(make_env(config.env.train, folder, "train"), seed=first_seed(config.runner.seed))
        self._random_steps = random_steps(config)

    def connect(self, policy: AnyPolicy, reward: RewardSource, rollout: Rollout) -> None:
        """See RolloutSource."""
        self.collector = Collector(policy, seed=self._config.runner.seed)
        self.rollout = rollout
        self.watching = reward if reward.learned else None

    def next(self, trainer: Trainer) -> list[RolloutBatch]:
        """See RolloutSource."""
        blind = trainer.steps < self._random_steps
        self.collector.collect(self.env, self.rollout, self.watching, blind=blind)
        count = self.rollout.steps * self.rollout.num_envs
        return [RolloutBatch(self.rollout, self.env.finished(), trainer.steps + count)]

    def pace(self, trainer: Trainer) -> Pace | None:
        """See RolloutSource."""
        return None

    def metrics(self, batches: Sequence[RolloutBatch], trainer: Trainer) -> dict[str, float]:
        """See RolloutSource."""
        return {}

    def swap(self, artifact: Artifact, version: int) -> None:
        """See RolloutSource: the model that scores is the one that watches."""

    def pause(self, trainer: Trainer) -> tuple[list[RolloutBatch], dict[str, np.ndarray]]:
        """See RolloutSource."""
        return [], acting_state(self.env, self.collector)

    def restore_state(self, state: dict[str, np.ndarray]) -> None:
        """See RolloutSource."""
        restore_acting(self.env, self.collector, state)

    def close(self) -> None:
        """See RolloutSource."""
        self.env.env.close()


class WorkerSource:
    """Rollout workers that a cluster places: in this process, or under Ray. All act, then one learner learns.

        workers: act ──rollouts, frames by reference──▶ scoring workers ──scores──▶ Trainer: relabel, learn, refine
           ▲                                                                            │
           └─────────────────────────── weights, every rollout ─────────────────────────┘

    What a dead worker was asked is asked again of the one that takes its place. A rollout worker begins from the state
    that it had when a checkpoint was last written; a scoring worker needs none.
    """

    in_step = True

    def __init__(self, config: Config, folder: Path) -> None:
        self._config, self._folder = config, folder
        self.lock: AbstractContextManager[Any] = nullcontext()
        self.cluster = Cluster(config.cluster)
        try:
            check_workers(self.cluster, config)
            self.env = described(config, folder)
        except BaseException:
            self.cluster.close()
            raise
        self.workers = len(self.cluster.plan["env"])
        self._continuity = ContinuityCheck()
        self._model: tuple[int, Shared] | None = None

    def connect(self, policy: AnyPolicy, reward: RewardSource, rollout: Rollout) -> None:
        """See RolloutSource."""
        self._reward = reward
        try:
            self.group = launch_workers(self.cluster, self._config, self._folder, policy.spec)
            self.scorers = launch_scorers(self.cluster, self._config, reward)
        except BaseException:
            self.cluster.close()
            raise

    def next(self, trainer: Trainer) -> list[RolloutBatch]:
        """See RolloutSource."""
        weights = self.group.share(weights_of(trainer))
        made = self.group.collect(trainer.steps, weights).shared()
        remote = self._score(made)
        batches: list[RolloutBatch] = [each.get() for each in made]
        for batch, scores in zip(batches, remote, strict=True):
            batch.rollout = batch.rollout.copy()  # what came by reference cannot be written to
            batch.remote = scores
            self._continuity.look(batch)
        return batches

    def _score(self, made: Sequence[Shared]) -> list[Any]:
        """What the model says of each rollout; the frames go from worker to worker, and not through here."""
        if self.scorers is None:
            return [None] * len(made)
        version, model = self._packed()
        calls = [
            self.scorers.on(number % len(self.scorers)).score(each, self._reward.cameras, model, version)
            for number, each in enumerate(made)
        ]
        answers = [call.wait()[0] for call in calls]
        for answer in answers:
            if answer is not None and answer.version != version:
                raise RefereeError(f"a scoring worker used version {answer.version} of the model, not {version}")
        return answers

    def _packed(self) -> tuple[int, Shared]:
        """The model that scores now, where all workers can read it."""
        version = self._reward.version
        if self._model is None or self._model[0] != version:
            assert self._reward.artifact is not None  # whoever is scored by others has one
            self._model = version, self.group.share(Packed.of(self._reward.artifact))
        return self._model

    def pace(self, trainer: Trainer) -> Pace | None:
        """See RolloutSource."""
        return None

    def metrics(self, batches: Sequence[RolloutBatch], trainer: Trainer) -> dict[str, float]:
        """See RolloutSource."""
        return {}

    def swap(self, artifact: Artifact, version: int) -> None:
        """See RolloutSource; scoring workers get the model with each request."""
        if self._reward.ends_episodes:
            self.group.swap(self._packed()[1], version).wait()

    def pause(self, trainer: Trainer) -> tuple[list[RolloutBatch], dict[str, np.ndarray]]:
        """See RolloutSource."""
        self.group.keep()
        return [], joined_states(self.group.save_state().wait())

    def restore_state(self, state: dict[str, np.ndarray]) -> None:
        """See RolloutSource."""
        for worker, own in enumerate(split_states(state, len(self.group))):
            self.group.on(worker).restore_state(own).wait()
        self.group.keep()

    def close(self) -> None:
        """See RolloutSource."""
        try:
            self.env.env.close()
        finally:
            self.cluster.close()


class ContinuityCheck:
    """Knows what each worker saw last, and so whether its next rollout goes on from there."""

    def __init__(self) -> None:
        self._last: dict[int, Observation] = {}

    def look(self, batch: RolloutBatch) -> None:
        """Say of a rollout whether it goes on where the last one of its worker ended."""
        rollout, last = batch.rollout, self._last.get(batch.worker, {})
        rollout.goes_on = all(np.array_equal(rollout.observations[name][0], last[name]) for name in last)
        self._last[batch.worker] = {name: rollout.last[name] for name in rollout.observations}


def weights_of(trainer: Trainer) -> PolicyWeights:
    """A copy of what has been learned so far."""
    arrays = {name: value.numpy().copy() for name, value in trainer.policy.state_dict().items()}
    return PolicyWeights(arrays, trainer.learner.updates)


def random_steps(config: Config) -> int:
    """Steps that come first, in which actions are random."""
    return config.algorithm.random_steps if isinstance(config.algorithm, SACConfig) else 0


def described(config: Config, folder: Path) -> EnvWorker:
    """Environments that look like those that are elsewhere: their spaces, cameras and first states."""
    assert config.env.train is not None
    env: RefereeVectorEnv = stand_in(config.env.train, folder, "train")
    return EnvWorker(env, seed=first_seed(config.runner.seed))


def check_workers(cluster: Cluster, config: Config) -> None:
    """Whether the environments can be shared among the workers."""
    assert config.env.train is not None
    learners = cluster.plan.ranks.get("actor", ())
    if len(learners) > 1 or any(rank.node for rank in learners):
        _log.warning("cluster.component_placement.actor: one learner, in this process, is all that is used")
    workers, envs = len(cluster.plan["env"]), config.env.train.num_envs
    if envs % workers:
        raise ConfigError(
            f"env.train.num_envs={envs} environments cannot be shared among {workers} env workers "
            f"(cluster.component_placement): use a multiple of {workers}"
        )


def launch_workers(cluster: Cluster, config: Config, folder: Path, spec: PolicySpec) -> Group:
    """Those who act."""
    fallback = Fallback(retry=("collect", "save_state"))
    return WorkerGroup(make_worker, config, folder, spec, fallback=fallback).launch(cluster, "env")


def launch_scorers(cluster: Cluster, config: Config, reward: RewardSource) -> Group | None:
    """None where nothing is scored, or not by those who have nothing but the model."""
    if not reward.scored_by_others:
        if reward.learned and not reward.ends_episodes and "reward" in (config.cluster.component_placement or {}):
            _log.warning("cluster.component_placement.reward: windows are judged in the process of the run")
        return None
    model = config.reward.model
    assert isinstance(model, RewardModelConfig)
    how = WorkerGroup(
        make_scorer, config.runner.imports, reward.options, backend=model.backend, int8=model.int8,
        threads=config.actor.num_threads or os.cpu_count() or 1, fallback=Fallback(retry=("score",)),
    )  # fmt: skip
    return how.launch(cluster, "reward")


def make_worker(rank: Rank, config: Config, folder: Path, spec: PolicySpec) -> RolloutWorker:
    """The rollout worker of a rank."""
    torch.set_num_threads(1)
    return RolloutWorker(config, folder, spec, rank=rank.rank, of=rank.world_size)


def make_scorer(rank: Rank, imports: Sequence[str], options: RewardOptions, **how: Any) -> ScoringWorker:
    """The scoring worker of a rank; all are alike. imports: modules that register models of one's own."""
    import_modules(imports)
    return ScoringWorker(options, **how)


def joined_states(states: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The states of all workers, as a checkpoint keeps them."""
    return {_own(worker) + name: value for worker, state in enumerate(states) for name, value in state.items()}


def split_states(state: Mapping[str, np.ndarray], workers: int) -> list[dict[str, np.ndarray]]:
    """The inverse, out of all that a checkpoint keeps."""
    saved = 1
    while any(name.startswith(_own(saved)) for name in state):
        saved += 1
    if saved != workers:
        raise CheckpointError(
            f"this run had {saved} env workers, not {workers}: set cluster.component_placement.env as it was"
        )
    return [
        {name.removeprefix(own): state[name] for name in state if name.startswith(tuple(own + each for each in ACTING))}
        for own in map(_own, range(saved))
    ]


def _own(worker: int) -> str:
    """What the names of a worker's state begin with; the first one's are those of a run without workers."""
    return f"crew{worker}." if worker else ""
