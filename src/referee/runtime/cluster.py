"""A cluster: the nodes that workers are placed on, in this process, in others of this machine, or under Ray."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
from collections.abc import Callable
from types import TracebackType

from referee.config.cluster import ClusterConfig
from referee.errors import ConfigError
from referee.processes import end_with_parent, main_left_out
from referee.runtime import engine
from referee.runtime.channel import Channel, ChannelKeeper, LocalChannel, RayChannel
from referee.runtime.nodes import Node, ranked
from referee.runtime.placement import Plan, node_groups, plan


class Cluster:
    """Where workers run, and which rank goes where. Everything is checked before it opens.

        with Cluster(config.cluster) as cluster:
            envs = WorkerGroup(make_env_worker, seed=0).launch(cluster, "env")

    plan: the ranks of each component.
    nodes: the machines in the order of their ranks; empty in process.
    """

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.nodes: list[Node] = []
        self.plan: Plan
        self._session: engine.Session | None = None
        self._channels: ChannelKeeper | None = None
        self._closing = contextlib.ExitStack()
        if config.backend != "ray":
            self.plan = plan_here(config)
            return
        plan(config, [0] * config.num_nodes)  # what is wrong on any cluster is said before one is opened
        if config.address is None:
            _check_one(config)
        self._session = engine.Session(config.address, config.token_path)
        try:
            self.nodes = ranked(engine.nodes(), node_groups(config))
            self.plan = plan(config, [node.accelerators for node in self.nodes])
        except BaseException:
            self.close()
            raise

    @property
    def remote(self) -> bool:
        """Whether workers are Ray actors."""
        return self.config.backend == "ray"

    def channel(self, name: str, capacity: int = 8) -> Channel:
        """A new channel that holds up to `capacity` items per tag."""
        if self.remote:
            return RayChannel(name, capacity)
        if self.config.backend == "process":
            return self._keeper().LocalChannel(name, capacity)  # type: ignore[attr-defined]
        return LocalChannel(name, capacity)

    def _keeper(self) -> ChannelKeeper:
        """The process that keeps the channels between processes of this machine."""
        if self._channels is None:
            self._channels = ChannelKeeper(ctx=multiprocessing.get_context("spawn"))
            with main_left_out():
                self._channels.start(end_with_parent)
            self.on_close(self._channels.shutdown)
        return self._channels

    def check_head(self) -> None:
        """Raise if the head of a Ray cluster is gone."""
        if self._session is not None:
            self._session.check_head()

    def on_close(self, end: Callable[[], None]) -> None:
        """Call `end` before the cluster closes; the last one first."""
        self._closing.callback(end)

    def close(self) -> None:
        """End all workers; a Ray of one's own ends with them."""
        try:
            self._closing.close()
        finally:
            self._disconnect()

    def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def plan_here(config: ClusterConfig) -> Plan:
    """The plan for this machine alone."""
    _check_one(config)
    needed = config.component_placement is not None
    return plan(config, [_accelerators() if needed else 0])


def _check_one(config: ClusterConfig) -> None:
    if config.num_nodes == 1:
        return
    why = {
        "local": "with cluster.backend=local all is in this process: set cluster.backend=ray",
        "process": "with cluster.backend=process all is on this machine: set cluster.backend=ray",
        "ray": "cluster.address names no head: start Ray on each machine and set cluster.address=HOST:PORT",
    }
    raise ConfigError(f"cluster.num_nodes is {config.num_nodes}, but {why[config.backend]}")


def _accelerators() -> int:
    """GPUs of this machine."""
    return int(importlib.import_module("torch").cuda.device_count())
