"""`referee cluster check`: the planned placement as a table, and whether the cluster can hold it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from referee.config.cluster import ClusterConfig
from referee.runtime import engine
from referee.runtime.cluster import Cluster, plan_here
from referee.runtime.nodes import Node
from referee.runtime.placement import Plan, Rank


def check(config: ClusterConfig, console: Console, *, suits: Callable[[Plan], None]) -> None:
    """Print where everything would go; nothing is started. A running cluster is asked for its nodes.

    suits: raises what a plan lacks for the run that is meant.
    """
    if config.backend == "ray" and config.address is not None:
        with Cluster(config) as cluster:
            suits(cluster.plan)
            console.print(table(cluster.plan, cluster.nodes))
            console.print(f"{config.address}: {len(cluster.nodes)} of {config.num_nodes} nodes are up, and hold it.")
        return
    plan = plan_here(config)
    suits(plan)
    console.print(table(plan))
    if config.backend == "ray":
        console.print(f"Ray {engine.ray().__version__} would be started on this machine, for this run alone.")
    elif config.backend == "process":
        console.print("Each rank would be a process of this machine.")
    else:
        console.print("All of it runs in one process, without Ray (cluster.backend=local).")


def table(plan: Plan, nodes: Sequence[Node] = ()) -> Table:
    """One row per rank; nodes with their addresses, where these are known."""
    found = Table("component", "rank", "node", "slot", box=None, pad_edge=False, header_style="bold")
    for component, ranks in (plan.ranks or {"each component": (Rank("any"),)}).items():
        for rank in ranks:
            name = component if rank.rank == 0 else ""
            address = f" ({nodes[rank.node].address})" if nodes else ""
            found.add_row(name, f"{rank.rank} of {rank.world_size}", f"{rank.node}{address}", slot(rank))
    return found


def slot(rank: Rank) -> str:
    """What a rank has for itself."""
    if rank.hardware is not None:
        return f"{rank.hardware.type} {rank.hardware.robot_ip}"
    return f"process {rank.slot}" if rank.accelerator is None else f"accelerator {rank.accelerator}"
