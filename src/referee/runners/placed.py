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
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from referee.config import Config
from referee.envs import RefereeVectorEnv
from referee.envs.contract import Observation
from referee.errors import ConfigError, RefereeError
from referee.models.packed import Packed
from referee.rewards import RewardOptions
from referee.rl.checkpoint import CheckpointError
from referee.rl.policy import PolicySpec
from referee.rl.rollout import Rollout
from referee.runners.crew import ACTING, Crew
from referee.runners.environments import make_env
from referee.runners.training import Training
from referee.runtime import Cluster, Fallback, Group, Rank, Shared, WorkerGroup
from referee.workers.delivery import Delivery, Said
from referee.workers.judge import JudgeWorker

_log = logging.getLogger(__name__)


class PlacedTraining(Training):
    """The same run as `Training`, with the same numbers and checkpoints."""

    def __init__(self, config: Config, folder: Path = Path()) -> None:
        self._cluster = Cluster(config.cluster)
        try:
            self._check(config)
            super().__init__(config, folder)
            self._crews = self._make_crews()
            self._judges = self._make_judges()
        except BaseException:
            self._cluster.close()
            raise
        self._finished: dict[str, list[float]] = {}
        self._model: tuple[int, Shared] | None = None
        self._last: list[Observation] = []
        """What each crew saw last."""

    def _check(self, config: Config) -> None:
        assert config.env.train is not None
        learners = self._cluster.plan.ranks.get("actor", ())
        if len(learners) > 1 or any(rank.node for rank in learners):
            _log.warning(
                "cluster.component_placement.actor: there is one learner, in this process; the rest is not used"
            )
        crews, envs = self._crews_wanted(), config.env.train.num_envs
        if envs % crews:
            raise ConfigError(
                f"env.train.num_envs={envs} environments cannot be shared among {crews} env workers "
                f"(cluster.component_placement): use a multiple of {crews}"
            )

    def _crews_wanted(self) -> int:
        return len(self._cluster.plan["env"])

    def _make_env(self) -> RefereeVectorEnv:
        """Only to know its spaces, cameras and first states: the crews have environments of their own."""
        train = self.config.env.train
        assert train is not None
        quiet = replace(train, data_collection=replace(train.data_collection, enabled=False))
        return make_env(quiet, self.folder, "train")

    def _make_crews(self) -> Group:
        how = WorkerGroup(
            make_crew, self.config, self.folder, self.policy.spec, fallback=Fallback(retry=("collect", "save_state"))
        )
        return how.launch(self._cluster, "env")

    def _make_judges(self) -> Group | None:
        """None where nobody is paid by a model, or where its verdict is needed at once: then the crews judge."""
        if self.payment is None or self.payment.reward.eager:
            return None
        model = self.config.reward.model
        threads = self.config.actor.num_threads or os.cpu_count() or 1
        how = WorkerGroup(
            make_judge, self.payment.reward.options, backend=model.backend, int8=model.int8, threads=threads,
            fallback=Fallback(retry=("judge",)),
        )  # fmt: skip
        return how.launch(self._cluster, "reward")

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
        for rollout, last in zip(rollouts, self._last or [{}] * len(rollouts), strict=True):
            rollout.goes_on = all(np.array_equal(rollout.observations[name][0], last[name]) for name in last)
        self._last = [{name: rollout.last[name] for name in rollout.observations} for rollout in rollouts]
        found = [
            self._pay(who, rollout, delivery, verdict, step)
            for who, (rollout, delivery, verdict) in enumerate(zip(rollouts, deliveries, said, strict=True))
        ]
        self.rollout = Rollout.joined(rollouts)
        return {name: float(np.mean([each[name] for each in found if name in each])) for name in found[0]}

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
        assert delivery.drawn is not None
        reward, manager = self.payment.rewards[who], self.payment.manager
        if said is not None:
            if said.version != manager.version:
                raise RefereeError(f"a judge answered with version {said.version} of the model, not {manager.version}")
            manager.seconds += said.seconds
            reward.take(delivery.drawn, said.looked, said.verdict)
        else:
            reward.take(delivery.drawn, delivery.looked)
        return self.payment.pay(rollout, self.actor, step, delivery.scored, who=who)

    def _packed(self) -> tuple[int, Shared]:
        """The model that judges now, where all workers can read it."""
        assert self.payment is not None
        version = self.payment.manager.version
        if self._model is None or self._model[0] != version:
            self._model = version, self._crews.share(Packed.of(self.payment.manager.artifact))
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
        states = self._crews.save_state().wait()
        return {_own(who) + name: value for who, state in enumerate(states) for name, value in state.items()}

    def _restore_acting(self, state: dict[str, np.ndarray]) -> None:
        saved = 1
        while any(name.startswith(_own(saved)) for name in state):
            saved += 1
        if saved != len(self._crews):
            raise CheckpointError(
                f"this run had {saved} env workers, and there are {len(self._crews)} now: "
                "set cluster.component_placement.env as it was"
            )
        for who in range(saved):
            own = {name.removeprefix(_own(who)): value for name, value in state.items() if name.startswith(_own(who))}
            mine = {name: value for name, value in own.items() if name.startswith(ACTING)}
            self._crews.on(who).restore_state(mine).wait()
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


def make_crew(rank: Rank, config: Config, folder: Path, spec: PolicySpec) -> Crew:
    """The crew of a rank."""
    torch.set_num_threads(1)
    return Crew(config, folder, spec, rank=rank.rank, of=rank.world_size)


def make_judge(rank: Rank, options: RewardOptions, **how: Any) -> JudgeWorker:
    """The judge of a rank; all are alike."""
    return JudgeWorker(options, **how)


def _own(who: int) -> str:
    """What the names of a crew's state begin with; the first one's are those of a run without crews."""
    return f"crew{who}." if who else ""
