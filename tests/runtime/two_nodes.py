"""The driver of test_two_nodes: an env worker on one node, a reward worker on the other; prints what it saw."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from tests.runtime.workers import Counter

from referee.config import load
from referee.errors import ClusterError, WorkerDied
from referee.runtime import Cluster, Fallback, WorkerGroup

CONFIG = [
    "cluster.backend=ray",
    "cluster.num_nodes=2",
    "cluster.node_groups=[{label: gpu, node_ranks: 0}, {label: franka, node_ranks: 1, hardware: "
    "{type: Franka, configs: [{robot_ip: 172.16.0.2, node_rank: 1}]}}]",
    "cluster.component_placement.env={node_group: franka, placement: 0}",
    "cluster.component_placement.reward={node_group: gpu, placement: 0}",
]


def main(address: str, token: str, raylet: int, head: int) -> None:
    config = load("panda_expert", [*CONFIG, f"cluster.address={address}", f"cluster.token_path={token}"]).config
    saw: dict[str, Any] = {}
    with Cluster(config.cluster) as cluster:
        saw["nodes"] = [node.address for node in cluster.nodes]
        env = WorkerGroup(Counter, fallback=Fallback(retry=("value", "ping"))).launch(cluster, "env")
        reward = WorkerGroup(Counter, fallback=Fallback(retry=("look", "ping"))).launch(cluster, "reward")
        saw["places"] = [group.on(0).node_address().wait(timeout=30)[0] for group in (env, reward)]
        saw["robot"] = env.who().wait()[0].hardware.robot_ip
        (frames,) = env.ones(5_000_000).shared()  # from the env's node to the reward's, not through the driver
        saw["look"] = reward.look(frames).wait(timeout=30)[0]
        (pid,) = reward.pid().wait()
        call = reward.ping(1.0)
        os.kill(pid, signal.SIGKILL)
        saw["replaced"] = call.wait(timeout=60)
        saw["again"] = reward.look(frames).wait(timeout=30)[0]
        saw["pids"] = [env.pid().wait()[0], reward.pid().wait()[0]]
        call = env.ping(20.0)
        os.kill(raylet, signal.SIGKILL)  # the robot's machine goes down
        try:
            call.wait(timeout=60)
        except WorkerDied as error:
            saw["gone"] = str(error)
        saw["reward goes on"] = reward.ping().wait(timeout=30)
        call = reward.ping(20.0)
        os.kill(head, signal.SIGKILL)
        try:
            call.wait(timeout=60)
        except ClusterError as error:
            saw["headless"] = str(error)
    print(json.dumps(saw))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
