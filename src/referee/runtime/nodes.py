"""Which machine is which node rank: by the labels it was started with, else the head first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from referee.errors import ClusterError
from referee.runtime.placement import EVERY, NodeGroup

GROUP_LABEL, RANK_LABEL = "node_group", "node_rank"
"""Labels of a Ray node: `ray start --labels node_group=franka,node_rank=1`."""


@dataclass(frozen=True)
class Node:
    """A machine of a Ray cluster."""

    id: str
    address: str
    head: bool = False
    accelerators: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)


def ranked(nodes: Sequence[Node], groups: Mapping[str, NodeGroup]) -> list[Node]:
    """The nodes in the order of their ranks; more than are needed may be there.

    A node with a rank label has that rank; one with a group label takes the first free rank of that group; of the
    others, the head comes first. Where that leaves a choice between nodes of different groups, it is refused.
    """
    count = len(groups[EVERY].nodes)
    if len(nodes) < count:
        raise ClusterError(
            f"cluster.num_nodes is {count}, but {len(nodes)} {'is' if len(nodes) == 1 else 'are'} up: "
            "start Ray on the others, or set cluster.num_nodes"
        )
    found: dict[int, Node] = {}
    rest: list[Node] = []
    for node in sorted(nodes, key=lambda each: (RANK_LABEL not in each.labels, not each.head, each.address, each.id)):
        rank = _labelled(node, groups, found, count)
        if rank is None:
            rest.append(node)
        else:
            found[rank] = node
    _fill(found, rest, groups, count)
    for rank in range(count):
        _check_label(rank, found[rank], groups)
    return [found[rank] for rank in range(count)]


def _labelled(node: Node, groups: Mapping[str, NodeGroup], found: Mapping[int, Node], count: int) -> int | None:
    label = node.labels.get(RANK_LABEL)
    if label is not None:
        if not label.isdecimal() or int(label) in found:
            wrong = "is no number" if not label.isdecimal() else f"is also that of {found[int(label)].address}"
            raise ClusterError(f"the label {RANK_LABEL}={label} of node {node.address} {wrong}: start it with another")
        return int(label) if int(label) < count else None
    group = groups.get(node.labels.get(GROUP_LABEL, ""))
    free = [rank for rank in group.nodes if rank not in found] if group else []
    return free[0] if free else None


def _fill(found: dict[int, Node], rest: Sequence[Node], groups: Mapping[str, NodeGroup], count: int) -> None:
    """Give the ranks that are left to the nodes that are left."""
    free = [rank for rank in range(count) if rank not in found]
    able = [node for node in rest if GROUP_LABEL not in node.labels and RANK_LABEL not in node.labels]
    if not any(_in(rank, groups) for rank in free):  # then it does not matter what a node is called elsewhere
        able += [node for node in rest if node not in able]
    if len(able) < len(free):
        rank = free[-1]
        raise ClusterError(f"no node is left for node rank {rank}{_in(rank, groups)}: {_start_it(rank, groups)}")
    if able and able[0].head and free and free[0] == 0:
        found[free.pop(0)] = able[0]
        able = able[1:]
    kinds = {_in(rank, groups) for rank in free}
    if len(kinds) > 1 or (len(able) > len(free) and kinds - {""}):
        which = " or ".join(node.address for node in able)
        rank = free[0]
        raise ClusterError(f"node rank {rank}{_in(rank, groups)} may be {which}: {_start_it(rank, groups)}")
    found |= dict(zip(free, able, strict=False))


def _check_label(rank: int, node: Node, groups: Mapping[str, NodeGroup]) -> None:
    label = node.labels.get(GROUP_LABEL, "")
    if label in groups and rank not in groups[label].nodes:
        raise ClusterError(
            f"node {node.address} is node rank {rank} but labelled {GROUP_LABEL}={label}, which has the node_ranks "
            f"{', '.join(map(str, groups[label].nodes))}: change the label or cluster.node_groups"
        )


def _of(rank: int, groups: Mapping[str, NodeGroup]) -> list[str]:
    return [label for label, group in groups.items() if label != EVERY and rank in group.nodes]


def _in(rank: int, groups: Mapping[str, NodeGroup]) -> str:
    labels = _of(rank, groups)
    return f" ({', '.join(labels)})" if labels else ""


def _start_it(rank: int, groups: Mapping[str, NodeGroup]) -> str:
    labels = _of(rank, groups)
    label = f"{GROUP_LABEL}={labels[0]}" if labels else f"{RANK_LABEL}={rank}"
    return f"start it with `ray start … --labels {label}`"
