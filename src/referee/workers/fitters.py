"""The training of a reward model on a cluster: its ranks are workers of a group, processes here or Ray actors there."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from referee.config import Config
from referee.errors import ConfigError, RefereeError, TimedOut, WorkerDied
from referee.runtime import Call, Channel, Cluster, Rank, WorkerGroup
from referee.runtime.ray_group import NodeGone
from referee.training.parallel import Launch, Work
from referee.training.recipe import TrainOptions
from referee.workers.components import trainer
from referee.workers.fitter import FitWorker

TOLD, STOP = "told", "stop"
LOOK = 0.2
"""Seconds between two looks at the ranks, while nothing is told."""
ASK = 0.5
"""Seconds between two questions of the first rank whether to stop."""
PATIENCE = 60.0
"""Seconds that the command has to take a report."""
GRACE = 20.0
"""Seconds in which the rank that is to blame comes forward, after one that only missed it."""
_log = logging.getLogger(__name__)


def fitters(cluster: Cluster) -> tuple[Rank, ...]:
    """The ranks that train a reward model."""
    return cluster.plan[trainer(cluster.plan)]


def placed(options: TrainOptions, config: Config, cluster: Cluster) -> TrainOptions:
    """The options with as many processes as there are ranks."""
    count, asked = len(fitters(cluster)), options.fit.num_processes
    if config.cluster.component_placement is None and not cluster.remote:
        return options
    if asked not in (1, count):
        raise ConfigError(
            f"actor.num_processes={asked}, but {count} reward {'worker is' if count == 1 else 'workers are'} placed: "
            f"set cluster.component_placement.reward=0-{asked - 1}, or leave actor.num_processes out"
        )
    if count > 1 and options.fit.training_backend == "simple":
        raise ConfigError(
            f"cluster.component_placement has {count} reward workers, but actor.training_backend=simple is one "
            "process: set it to ddp or fsdp"
        )
    return replace(options, fit=replace(options.fit, num_processes=count))


def launcher(cluster: Cluster) -> Launch | None:
    """What runs the training; None: processes of this machine, as without a cluster."""
    if not cluster.remote:
        return None
    return RayLaunch(cluster)


class RayLaunch:
    """Runs the work in Ray actors. When one dies, it is made again, and all go on from the last checkpoint."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def __call__(
        self,
        work: Work,
        arguments: tuple[Any, ...],
        *,
        backend: str,
        processes: int,
        hear: Callable[[Any], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        """See Launch."""
        ranks, nodes = fitters(self._cluster), self._cluster.nodes
        group = WorkerGroup(make_fitter, [nodes[rank.node].address for rank in ranks]).launch(self._cluster, ranks)
        deaths = 0
        while True:
            channel = self._cluster.channel("fit", capacity=64)
            line, meet = Line(channel), group.on(0).listen().wait()[0]
            calls = [
                group.on(number).fit(work, arguments, backend, meet, line, deaths > 0) for number in range(processes)
            ]
            try:
                _follow(calls, channel, hear or _ignore, stop or _never)
                return
            except WorkerDied as error:
                deaths += 1
                if deaths > self._cluster.config.max_restarts or isinstance(error, NodeGone):
                    raise
                _log.warning("%s; all ranks go on from the last checkpoint", str(error).split(", which")[0])


def make_fitter(rank: Rank, addresses: list[str]) -> FitWorker:
    """The fitter of a rank."""
    return FitWorker(rank.rank, rank.world_size, addresses[rank.rank])


class Line:
    """From the first rank to the command and back: reports one way, the wish to stop the other."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._asked, self._wanted = 0.0, False

    def tell(self, what: Any) -> None:
        """Let the command hear it."""
        self._channel.put(what, tag=TOLD, timeout=PATIENCE)

    def stop(self) -> bool:
        """Whether the command wants an end; it is not asked all the time."""
        if not self._wanted and time.monotonic() - self._asked > ASK:
            self._asked = time.monotonic()
            with contextlib.suppress(TimedOut):
                self._wanted = self._channel.get(tag=STOP, timeout=0)
        return self._wanted


def _follow(calls: list[Call], channel: Channel, hear: Callable[[Any], None], stop: Callable[[], bool]) -> None:
    """Pass on what is told until all ranks are done, or raise what went wrong with the first that is to blame."""
    under_way, told = list(calls), False
    first: tuple[float, Exception] | None = None
    while under_way:
        _hear(channel, hear, LOOK)
        if stop() and not told:
            channel.put(True, tag=STOP)
            told = True
        for call in [each for each in under_way if each.done()]:
            under_way.remove(call)
            try:
                call.wait()
            except RefereeError:  # a refusal, or a death
                raise
            except Exception as error:  # as of a rank whose neighbour is gone
                first = first or (time.monotonic(), error)
        if first is not None and (not under_way or time.monotonic() > first[0] + GRACE):
            raise first[1]
    while _hear(channel, hear, 0):
        pass


def _hear(channel: Channel, hear: Callable[[Any], None], timeout: float) -> bool:
    """Whether something was told within this time."""
    try:
        hear(channel.get(tag=TOLD, timeout=timeout))
    except TimedOut:
        return False
    except WorkerDied:  # what it had told is gone with it; that it died is seen where it was called
        return False
    return True


def _ignore(what: Any) -> None:
    pass


def _never() -> bool:
    return False
