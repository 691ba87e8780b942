"""The keys of where workers run: this process, or the nodes of a Ray cluster."""
# ruff: noqa: RUF009 -- key() makes a dataclasses.field; nothing mutable is shared

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from referee.config.declare import REQUIRED, key


@dataclass(frozen=True, kw_only=True)
class PlacementConfig:
    """Where the ranks of a component go: one rank per slot."""

    node_group: str | int | None = key(None, "label of one of cluster.node_groups; null = all nodes")
    placement: str | int = key(REQUIRED, "slots of those nodes: 0, 0-3, 0,2 or all")


@dataclass(frozen=True, kw_only=True)
class HardwareUnitConfig:
    """One robot."""

    robot_ip: str = key(REQUIRED, "address of the robot's controller")
    node_rank: int | None = key(None, "the node that it is wired to; null = the only one of its group", low=0)


@dataclass(frozen=True, kw_only=True)
class HardwareConfig:
    """Robots of one kind; each is a slot, as a GPU is."""

    type: str = key(REQUIRED, "the kind", choices=("Franka",))
    configs: tuple[HardwareUnitConfig, ...] = key((), "each robot")


@dataclass(frozen=True, kw_only=True)
class NodeGroupConfig:
    """Some of the nodes, under a name."""

    label: str | int | None = key(None, "the name; null = the hardware's type in small letters")
    node_ranks: str | int = key("all", "its nodes: 0, 0-3, 0,2 or all")
    env_vars: tuple[str, ...] = key((), "NAME=value, set for the workers that are placed by this group")
    hardware: HardwareConfig | None = key(None, "robots at these nodes; null = none")


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Where workers run."""

    backend: str = key(
        "local", "workers in this process, in others of this machine, or Ray actors",
        choices=("local", "process", "ray"),
    )  # fmt: skip
    num_nodes: int = key(1, "machines that take part", low=1)
    address: str | None = key(
        None, "HOST:PORT of a running Ray's head; null = a Ray of one's own on this machine", only_if="backend=ray"
    )
    token_path: str | None = key(
        None, "file with the cluster's token; null = as Ray finds it, or a new one for a Ray of one's own",
        only_if="backend=ray",
    )  # fmt: skip
    max_restarts: int = key(
        3, "times that a worker whose process died is made again", low=0, only_if="backend=process or backend=ray"
    )
    component_placement: Mapping[str, PlacementConfig] | None = key(
        None, "where each component runs, as `env: 0-0`; null = one worker of each, in the first slot",
        short="placement",
    )  # fmt: skip
    node_groups: tuple[NodeGroupConfig, ...] = key((), "nodes with a name, and the robots wired to them")


def several_rewards(config: ClusterConfig) -> list[str]:
    """A line where `reward` gets a range of slots, which one of the documents takes for the last of them alone."""
    found = []
    for names, wanted in (config.component_placement or {}).items():
        first, dash, last = str(wanted.placement).partition("-")
        if "reward" in names.split(",") and dash and first != last:
            found.append(
                f"cluster.component_placement.{names}={wanted.placement} are the slots {first} to {last}, "
                f"with a worker in each; slot {last} alone is {last}-{last}"
            )
    return found
