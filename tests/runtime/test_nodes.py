"""Which machine is which node rank."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from referee.config.cluster import ClusterConfig, NodeGroupConfig
from referee.errors import ClusterError
from referee.runtime.nodes import Node, ranked
from referee.runtime.placement import NodeGroup, node_groups


def machine(address: str, *, head: bool = False, **labels: str) -> Node:
    return Node(id=f"id-{address}", address=address, head=head, labels=labels)


def groups(count: int, **ranks: str | int) -> dict[str, NodeGroup]:
    declared = tuple(NodeGroupConfig(label=label, node_ranks=where) for label, where in ranks.items())
    return node_groups(ClusterConfig(num_nodes=count, node_groups=declared))


HEAD, B, C = machine("a", head=True), machine("b"), machine("c")
ARM = machine("b", node_group="arm")


@pytest.mark.parametrize(
    ("nodes", "declared", "order"),
    [
        ([HEAD], groups(1), "a"),
        ([C, B, HEAD], groups(3), "abc"),
        ([C, B, HEAD], groups(2), "ab"),  # more are up than are needed
        ([B, HEAD], groups(2, arm=1), "ab"),  # only one is left for the arm
        ([ARM, HEAD], groups(2, arm=0, gpu=1), "ba"),
        ([HEAD, ARM, C], groups(3, arm=2), "acb"),
        ([HEAD, ARM, C], groups(2, arm=1), "ab"),
        ([machine("a", head=True, node_rank="1"), machine("b", node_rank="0")], groups(2), "ba"),
        ([HEAD, machine("b", node_rank="7")], groups(1), "a"),
        ([HEAD, machine("b", node_group="elsewhere"), C], groups(2), "ac"),
        ([HEAD, machine("b", node_group="elsewhere")], groups(2), "ab"),
    ],
)
def test_order(nodes: list[Node], declared: dict[str, NodeGroup], order: str) -> None:
    assert "".join(node.address for node in ranked(nodes, declared)) == order


@pytest.mark.parametrize(
    ("nodes", "declared", "line"),
    [
        ([HEAD], groups(2),
         "cluster.num_nodes is 2, but 1 is up: start Ray on the others, or set cluster.num_nodes"),
        ([HEAD, B, C], groups(3, arm=1, gpu=2),
         "node rank 1 (arm) may be b or c: start it with `ray start … --labels node_group=arm`"),
        ([HEAD, B, C], groups(2, arm=1),
         "node rank 1 (arm) may be b or c: start it with `ray start … --labels node_group=arm`"),
        ([HEAD, machine("b", node_group="x")], groups(2, arm=1),
         "no node is left for node rank 1 (arm): start it with `ray start … --labels node_group=arm`"),
        ([machine("a", head=True, node_group="gpu"), machine("b", node_group="gpu")], groups(2, gpu=0),
         "node b is node rank 1 but labelled node_group=gpu, which has the node_ranks 0: "
         "change the label or cluster.node_groups"),
        ([HEAD, machine("b", node_rank="one")], groups(2),
         "the label node_rank=one of node b is no number: start it with another"),
        ([machine("a", node_rank="1"), machine("b", node_rank="1")], groups(2),
         "the label node_rank=1 of node b is also that of a: start it with another"),
        ([HEAD, machine("b", node_rank="1", node_group="gpu")], groups(2, gpu=0),
         "node b is node rank 1 but labelled node_group=gpu, which has the node_ranks 0: "
         "change the label or cluster.node_groups"),
    ],
)  # fmt: skip
def test_refusals(nodes: list[Node], declared: dict[str, NodeGroup], line: str) -> None:
    with pytest.raises(ClusterError) as caught:
        ranked(nodes, declared)
    assert str(caught.value) == line


@given(st.permutations(range(4)))
def test_the_order_in_which_ray_lists_nodes_does_not_matter(order: list[int]) -> None:
    nodes = [HEAD, ARM, machine("c", node_group="gpu"), machine("d", node_group="gpu")]
    declared = groups(4, arm=1, gpu="2-3")
    assert [node.address for node in ranked([nodes[i] for i in order], declared)] == list("abcd")


def test_each_rank_has_another_machine() -> None:
    machines = [HEAD, ARM, C, machine("d", node_rank="1"), machine("e", node_group="gpu")]
    for count, extra in itertools.product((1, 2, 3), (0, 1)):
        found = ranked(machines[: count + extra] if extra else machines[:count], groups(count))
        assert len({node.id for node in found}) == count
