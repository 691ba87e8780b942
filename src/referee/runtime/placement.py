"""Where each rank of each component goes, from the `cluster` section alone: pure functions, nothing is started.

A slot is a robot where the node group has robots, else an accelerator where its nodes have any, else a process. Slots
are counted over the nodes of the group, in the order of their ranks; processes go to the nodes in turn.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from referee.config.cluster import ClusterConfig, NodeGroupConfig
from referee.errors import ConfigError
from referee.runtime.slots import read_indices

COMPONENTS = ("actor", "env", "rollout", "reward", "teleop")
EVERY = "cluster"
"""The node group of all nodes, which needs no declaration."""
PROCESSES = 256
"""Processes of one component that a node may hold."""
PLACES = "cluster.component_placement"
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Hardware:
    """A robot, and what its driver has to know."""

    type: str
    robot_ip: str


@dataclass(frozen=True)
class Rank:
    """One worker of a group: which it is, of how many, and where it lives."""

    component: str
    rank: int = 0
    world_size: int = 1
    node: int = 0
    slot: int = 0
    accelerator: int | None = None
    hardware: Hardware | None = None
    env_vars: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.component} rank {self.rank}"


@dataclass(frozen=True)
class NodeGroup:
    """Some nodes under a name; robots as (node, robot)."""

    label: str
    nodes: tuple[int, ...]
    robots: tuple[tuple[int, Hardware], ...] = ()
    env_vars: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Plan:
    """The ranks of each component; `everywhere` also answers for those that are not named."""

    ranks: Mapping[str, tuple[Rank, ...]] = field(default_factory=dict)
    everywhere: bool = True

    def __getitem__(self, component: str) -> tuple[Rank, ...]:
        """The ranks of a component; without any placement, one in the first slot."""
        found = self.ranks.get(component)
        if found is None and not self.everywhere:
            raise ConfigError(f"{PLACES} has no place for {component}: add `{component}: 0-0` to it")
        return found or (Rank(component),)


def plan(config: ClusterConfig, accelerators: Sequence[int] = (0,)) -> Plan:
    """Place every component; what cannot be placed is refused in one line.

    accelerators: how many each node has, in the order of node ranks.
    """
    groups = node_groups(config)
    if config.component_placement is None:
        return Plan()
    ranks: dict[str, tuple[Rank, ...]] = {}
    for names, wanted in config.component_placement.items():
        where = f"{PLACES}.{names}"
        group = _group(groups, wanted.node_group, where)
        for name in _components(names):
            if name in ranks:
                raise ConfigError(f"{where}: {name} is placed twice: keep one of the two")
            ranks[name] = _ranks(name, group, wanted.placement, accelerators, where)
    return Plan(ranks, everywhere=False)


def node_groups(config: ClusterConfig) -> dict[str, NodeGroup]:
    """The node groups by label, with the one of all nodes."""
    every = tuple(range(config.num_nodes))
    groups = {EVERY: NodeGroup(EVERY, every)}
    for index, declared in enumerate(config.node_groups):
        group = _node_group(declared, every, f"cluster.node_groups.{index}")
        if group.label in groups:
            taken = "the name of all nodes" if group.label == EVERY else "taken"
            raise ConfigError(f"cluster.node_groups.{index}.label: {group.label} is {taken}: choose another")
        groups[group.label] = group
    return groups


def _node_group(declared: NodeGroupConfig, every: tuple[int, ...], key: str) -> NodeGroup:
    if declared.label is None and declared.hardware is None:
        raise ConfigError(f"{key}.label is missing: name the group, as `label: gpu`")
    label = declared.hardware.type.lower() if declared.label is None and declared.hardware else str(declared.label)
    indices = read_indices(declared.node_ranks, f"{key}.node_ranks")
    nodes = every if indices is None else indices
    for node in nodes:
        if node not in every:
            raise ConfigError(f"{key}.node_ranks: there is no node {node}: {_nodes(every)}")
    return NodeGroup(label, nodes, _robots(declared, nodes, key), _env_vars(declared, key))


def _robots(declared: NodeGroupConfig, nodes: tuple[int, ...], key: str) -> tuple[tuple[int, Hardware], ...]:
    if declared.hardware is None:
        return ()
    if not declared.hardware.configs:
        raise ConfigError(f"{key}.hardware.configs is empty: give each robot, as `- robot_ip: 172.16.0.2`")
    robots = []
    for index, unit in enumerate(declared.hardware.configs):
        here = f"{key}.hardware.configs.{index}.node_rank"
        if unit.node_rank is None and len(nodes) > 1:
            raise ConfigError(f"{here} is missing: the group has the nodes {_listed(nodes)}; say which has this robot")
        node = nodes[0] if unit.node_rank is None else unit.node_rank
        if node not in nodes:
            raise ConfigError(f"{here}: node {node} is not of this group: its node_ranks are {_listed(nodes)}")
        robots.append((node, Hardware(declared.hardware.type, unit.robot_ip)))
    return tuple(robots)


def _env_vars(declared: NodeGroupConfig, key: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for entry in declared.env_vars:
        name, equals, value = entry.partition("=")
        if not name or not equals:
            raise ConfigError(f"{key}.env_vars: cannot read {entry!r}: write NAME=value")
        pairs.append((name, value))
    return tuple(pairs)


def _components(names: str) -> list[str]:
    found = [name.strip() for name in names.split(",")]
    for name in found:
        if name not in COMPONENTS:
            near = get_close_matches(name, COMPONENTS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMPONENTS)}"
            raise ConfigError(f"{PLACES}.{names}: there is no component {name!r}: {hint}")
    return found


def _group(groups: Mapping[str, NodeGroup], label: str | int | None, where: str) -> NodeGroup:
    name = EVERY if label is None else str(label)
    if name not in groups:
        raise ConfigError(f"{where}.node_group: cluster.node_groups has no {name}: there are {', '.join(groups)}")
    return groups[name]


def _ranks(
    component: str, group: NodeGroup, placement: str | int, accelerators: Sequence[int], where: str
) -> tuple[Rank, ...]:
    indices = read_indices(placement, f"{where}.placement")
    cards = [(node, card) for node in group.nodes for card in range(accelerators[node])]
    if group.robots:
        kind, count = "robot", len(group.robots)
    elif cards:
        kind, count = "accelerator", len(cards)
    else:
        kind, count = "process", PROCESSES * len(group.nodes)
    slots = range(len(group.nodes) if kind == "process" else count) if indices is None else indices
    made = []
    for rank, slot in enumerate(slots):
        if slot >= count:
            raise ConfigError(f"{where}: there is no slot {slot}: {_slots_of(group, kind, count)}")
        node, card, robot = group.nodes[slot % len(group.nodes)], None, None
        if kind == "robot":
            node, robot = group.robots[slot]
        elif kind == "accelerator":
            node, card = cards[slot]
        made.append(Rank(component, rank, len(slots), node, slot, card, robot, group.env_vars))
    return tuple(made)


def _slots_of(group: NodeGroup, kind: str, count: int) -> str:
    """How many slots there are, and why: one line for somebody who counted otherwise."""
    whose = "the cluster" if group.label == EVERY else f"node group {group.label}"
    last = "0" if count == 1 else f"0-{count - 1}"
    plural = {"process": "processes", "robot": "robots", "accelerator": "accelerators"}[kind]
    return f"{whose} has {count} {kind if count == 1 else plural}, so write {last} or all"


def _listed(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes))


def _nodes(every: Sequence[int]) -> str:
    last = len(every) - 1
    return f"cluster.num_nodes is {len(every)}, so {f'they are 0-{last}' if last else 'the only one is 0'}"


def device(accelerator: int, visible: str | None) -> str:
    """The CUDA name of a node's accelerator, where the node may have been started with some of them alone."""
    return visible.split(",")[accelerator].strip() if visible else str(accelerator)


def variables_of(rank: Rank) -> dict[str, str]:
    """What a process of its own is started with: its node group's variables, and no other accelerator than its own."""
    visible = {} if rank.accelerator is None else {VISIBLE: device(rank.accelerator, os.environ.get(VISIBLE))}
    return {**dict(rank.env_vars), **visible}
