"""Workers in this process or on a Ray cluster: placement, groups, channels. Ray is imported only when it is used."""

from referee.runtime.channel import Channel
from referee.runtime.cluster import Cluster
from referee.runtime.group import Call, Fallback, Group, Shared, WorkerGroup
from referee.runtime.placement import Hardware, Plan, Rank, plan

__all__ = [
    "Call",
    "Channel",
    "Cluster",
    "Fallback",
    "Group",
    "Hardware",
    "Plan",
    "Rank",
    "Shared",
    "WorkerGroup",
    "plan",
]
