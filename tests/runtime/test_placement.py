"""Placement: every documented spelling, and one line for what cannot be placed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from referee.config.cluster import (
    ClusterConfig,
    HardwareConfig,
    HardwareUnitConfig,
    NodeGroupConfig,
    PlacementConfig,
)
from referee.errors import ConfigError
from referee.runtime.placement import COMPONENTS, Hardware, Plan, plan
from referee.runtime.slots import read_indices


def franka(*units: tuple[str, int | None], **group: Any) -> NodeGroupConfig:
    configs = tuple(HardwareUnitConfig(robot_ip=ip, node_rank=node) for ip, node in units)
    return NodeGroupConfig(hardware=HardwareConfig(type="Franka", configs=configs), **group)


def placed(nodes: int = 1, groups: tuple[NodeGroupConfig, ...] = (), **components: Any) -> ClusterConfig:
    """A configuration; a component is given as its placement, or as (node group, placement)."""
    entries = {
        name.replace("_", ","): PlacementConfig(placement=where)
        if not isinstance(where, tuple)
        else PlacementConfig(node_group=where[0], placement=where[1])
        for name, where in components.items()
    }
    return ClusterConfig(num_nodes=nodes, node_groups=groups, component_placement=entries)


def where(found: Plan, component: str) -> list[tuple[int, int | None]]:
    """(node, accelerator) of each rank."""
    return [(rank.node, rank.accelerator) for rank in found[component]]


TWO_NODES = (NodeGroupConfig(label="4090", node_ranks=0), franka(("172.16.0.2", 1), label="franka", node_ranks=1))


@pytest.mark.parametrize(
    ("text", "indices"),
    [("0-0", (0,)), ("0-3", (0, 1, 2, 3)), ("0", (0,)), (0, (0,)), ("0,2", (0, 2)), ("2, 0-1", (2, 0, 1)),
     ("all", None), ("3 - 4", (3, 4))],
)  # fmt: skip
def test_spellings(text: str | int, indices: tuple[int, ...] | None) -> None:
    assert read_indices(text, "key") == indices


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot read '': write 0, 0-3, 0,2 or all"),
        ("0-", "cannot read '0-'"),
        ("a", "cannot read 'a'"),
        ("-1", "cannot read '-1'"),
        ("all,0", "cannot read 'all,0'"),
        ("3-1", "3-1 ends before it begins: write 1-3"),
        ("0-1,1", "0-1,1 names 1 twice: name each once"),
        ("0-99999", "0-99999 are more than 4096: name fewer"),
    ],
)
def test_wrong_spellings(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_indices(text, "some.key")
    assert str(caught.value).startswith(f"some.key: {says}")


@pytest.mark.parametrize(
    ("config", "accelerators", "component", "expected"),
    [
        # A laptop: the documents' spellings all work.
        (placed(actor="0-0"), [0], "actor", [(0, None)]),
        (placed(reward="all"), [0], "reward", [(0, None)]),
        (placed(reward="0-1"), [0], "reward", [(0, None), (0, None)]),  # 002: two processes
        (placed(actor_env_rollout="0-3"), [0], "rollout", [(0, None)] * 4),
        # Machines without accelerators: processes go to the nodes in turn.
        (placed(3, env="all"), [0, 0, 0], "env", [(0, None), (1, None), (2, None)]),
        (placed(2, env="0-2"), [0, 0], "env", [(0, None), (1, None), (0, None)]),
        # Accelerators are counted over the nodes.
        (placed(actor="0-0", reward="0-1"), [2], "reward", [(0, 0), (0, 1)]),
        (placed(2, actor="all"), [2, 1], "actor", [(0, 0), (0, 1), (1, 0)]),
        (placed(2, actor="1,2"), [2, 1], "actor", [(0, 1), (1, 0)]),
        (placed(2, actor="0-1"), [0, 2], "actor", [(1, 0), (1, 1)]),  # a node without any does not count
        # Node groups: 004's teleoperation, whether its machine has GPUs or not.
        (placed(2, TWO_NODES, env=("franka", 0), reward=("4090", 0)), [1, 0], "env", [(1, None)]),
        (placed(2, TWO_NODES, env=("franka", 0), reward=("4090", 0)), [1, 0], "reward", [(0, 0)]),
        (placed(2, TWO_NODES, env=("franka", 0), reward=(4090, "all")), [0, 2], "reward", [(0, None)]),
        (placed(2, TWO_NODES, env=("cluster", "all")), [0, 0], "env", [(0, None), (1, None)]),
    ],
)  # fmt: skip
def test_where_ranks_go(
    config: ClusterConfig, accelerators: list[int], component: str, expected: list[tuple[int, int | None]]
) -> None:
    assert where(plan(config, accelerators), component) == expected


def test_a_robot_counts_like_an_accelerator() -> None:
    group = franka(("10.0.0.1", 1), ("10.0.0.2", 1), ("10.0.0.3", 2), label="arms", node_ranks="1-2")
    ranks = plan(placed(3, (group,), env=("arms", "0,2")), [8, 8, 8])["env"]
    assert [(rank.node, rank.accelerator, rank.hardware) for rank in ranks] == [
        (1, None, Hardware("Franka", "10.0.0.1")),
        (2, None, Hardware("Franka", "10.0.0.3")),
    ]
    assert [(rank.rank, rank.world_size, rank.slot) for rank in ranks] == [(0, 2, 0), (1, 2, 2)]


def test_document_001_gives_the_robot_alone() -> None:
    (rank,) = plan(placed(1, (franka(("172.16.0.2", None)),), env=("franka", 0)))["env"]
    assert (rank.node, rank.hardware) == (0, Hardware("Franka", "172.16.0.2"))


def test_without_placement_one_worker_of_each() -> None:
    found = plan(ClusterConfig())
    assert all(len(found[name]) == 1 and found[name][0].component == name for name in COMPONENTS)


def test_variables_of_a_group_reach_its_workers() -> None:
    groups = (NodeGroupConfig(label="gpu", env_vars=("A=1", "B=x=y")),)
    (rank,) = plan(placed(1, groups, actor=("gpu", 0)))["actor"]
    assert rank.env_vars == (("A", "1"), ("B", "x=y"))


@pytest.mark.parametrize(
    ("config", "accelerators", "line"),
    [
        (placed(env="1"), [1],
         "cluster.component_placement.env: there is no slot 1: the cluster has 1 accelerator, so write 0 or all"),
        (placed(2, actor="0-4"), [2, 2],
         "cluster.component_placement.actor: there is no slot 4: the cluster has 4 accelerators, so write 0-3 or all"),
        (placed(2, TWO_NODES, env=("franka", "0-1")), [0, 0],
         "cluster.component_placement.env: there is no slot 1: node group franka has 1 robot, so write 0 or all"),
        (placed(env="0-256"), [0],
         "cluster.component_placement.env: there is no slot 256: the cluster has 256 processes, so write 0-255 or all"),
        (placed(env=("frank", 0)), [0],
         "cluster.component_placement.env.node_group: cluster.node_groups has no frank: there are cluster"),
        (placed(rewrad="0"), [0],
         "cluster.component_placement.rewrad: there is no component 'rewrad': did you mean reward?"),
        (placed(x_env="0"), [0],
         "cluster.component_placement.x,env: there is no component 'x': there are actor, env, rollout, reward, teleop"),
        (placed(env="0", actor_env="0"), [0],
         "cluster.component_placement.actor,env: env is placed twice: keep one of the two"),
        (placed(1, (NodeGroupConfig(label="a", node_ranks=1),), env="0"), [0],
         "cluster.node_groups.0.node_ranks: there is no node 1: cluster.num_nodes is 1, so the only one is 0"),
        (placed(2, (NodeGroupConfig(label="a", node_ranks="0-2"),), env="0"), [0, 0],
         "cluster.node_groups.0.node_ranks: there is no node 2: cluster.num_nodes is 2, so they are 0-1"),
        (placed(1, (NodeGroupConfig(),), env="0"), [0],
         "cluster.node_groups.0.label is missing: name the group, as `label: gpu`"),
        (placed(1, (NodeGroupConfig(label="a"), NodeGroupConfig(label="a")), env="0"), [0],
         "cluster.node_groups.1.label: a is taken: choose another"),
        (placed(1, (NodeGroupConfig(label="cluster"),), env="0"), [0],
         "cluster.node_groups.0.label: cluster is the name of all nodes: choose another"),
        (placed(1, (franka(),), env="0"), [0],
         "cluster.node_groups.0.hardware.configs is empty: give each robot, as `- robot_ip: 172.16.0.2`"),
        (placed(2, (franka(("x", None)),), env="0"), [0, 0],
         "cluster.node_groups.0.hardware.configs.0.node_rank is missing: the group has the nodes 0, 1; "
         "say which has this robot"),
        (placed(2, (franka(("x", 0), node_ranks=1),), env="0"), [0, 0],
         "cluster.node_groups.0.hardware.configs.0.node_rank: node 0 is not of this group: its node_ranks are 1"),
        (placed(1, (NodeGroupConfig(label="a", env_vars=("A",)),), env="0"), [0],
         "cluster.node_groups.0.env_vars: cannot read 'A': write NAME=value"),
    ],
)  # fmt: skip
def test_what_cannot_be_placed_says_why(config: ClusterConfig, accelerators: list[int], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(config, accelerators)
    assert str(caught.value) == line


def test_a_component_without_a_place_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"has no place for reward: add `reward: 0-0` to it"):
        plan(placed(env="0"))["reward"]


CLUSTERS = st.lists(st.integers(0, 3), min_size=1, max_size=4)


@given(CLUSTERS, st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True))
def test_ranks_are_placed_in_order_or_refused(accelerators: list[int], slots: list[int]) -> None:
    """Whatever is asked of whichever cluster: each rank on a node that is there, its own slot, in the order given."""
    config = placed(len(accelerators), env=",".join(map(str, slots)))
    cards = sum(accelerators)
    if cards and max(slots) >= cards:
        with pytest.raises(ConfigError, match="there is no slot"):
            plan(config, accelerators)
        return
    ranks = plan(config, accelerators)["env"]
    assert [rank.rank for rank in ranks] == list(range(len(slots)))
    assert [rank.slot for rank in ranks] == slots
    assert all(rank.world_size == len(slots) for rank in ranks)
    if cards:
        assert all(rank.accelerator is not None and rank.accelerator < accelerators[rank.node] for rank in ranks)
        assert len({(rank.node, rank.accelerator) for rank in ranks}) == len(ranks)
    else:
        assert all(0 <= rank.node < len(accelerators) and rank.accelerator is None for rank in ranks)


@given(CLUSTERS)
def test_all_is_every_accelerator_or_every_node(accelerators: list[int]) -> None:
    ranks = plan(placed(len(accelerators), env="all"), accelerators)["env"]
    every = [(node, card) for node, count in enumerate(accelerators) for card in range(count)]
    assert [(rank.node, rank.accelerator) for rank in ranks] == (
        every or [(node, None) for node in range(len(accelerators))]
    )


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8, unique=True))
def test_any_list_of_indices_is_read_back(indices: list[int]) -> None:
    assert read_indices(",".join(map(str, indices)), "key") == tuple(indices)
