"""Prints what a worker in another process costs: start-up, a call, 20 MB by value or by reference, a channel, recovery.

The same worker and the same calls, in this process and as Ray actors. Medians, in milliseconds unless said otherwise.
"""

import logging
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from referee.config.cluster import ClusterConfig, PlacementConfig
from referee.runtime import Cluster, Fallback, Rank, WorkerGroup
from referee.runtime.group import Group

SIZE = 20_000_000
TWO = {"env": PlacementConfig(placement="0-1")}


class Echo:
    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    def ping(self, seconds: float = 0.0) -> int:
        if seconds:
            time.sleep(seconds)
        return os.getpid()

    def take(self, array: np.ndarray) -> int:
        return int(array[0])

    def give(self) -> np.ndarray:
        return np.zeros(SIZE, np.uint8)


def median(work: Callable[[], Any], times: int) -> float:
    """Milliseconds."""
    seconds = []
    for _ in range(times + 2):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds[2:])


def measure(backend: str) -> dict[str, float]:
    start = time.perf_counter()
    with Cluster(ClusterConfig(backend=backend, component_placement=TWO)) as cluster:
        found = {"open the cluster, s": time.perf_counter() - start}
        start = time.perf_counter()
        group = WorkerGroup(Echo, fallback=Fallback(retry=("ping",))).launch(cluster, "env")
        found["launch two workers, s"] = time.perf_counter() - start
        one, array, channel = group.on(0), np.zeros(SIZE, np.uint8), cluster.channel("c")
        shared = group.share(array)
        made = one.give().shared()[0]

        def through() -> None:
            channel.put(array)
            channel.get()

        def small() -> None:
            channel.put(1)
            channel.get()

        found["a call, one rank"] = median(lambda: one.ping().wait(), 300)
        found["a call, two ranks"] = median(lambda: group.ping().wait(), 300)
        found["20 MB as an argument"] = median(lambda: one.take(array).wait(), 20)
        found["20 MB as an argument, by reference"] = median(lambda: one.take(shared).wait(), 50)
        found["20 MB as a result"] = median(lambda: one.give().wait(), 20)
        found["20 MB from rank 0 to rank 1, by reference"] = median(lambda: group.on(1).take(made).wait(), 50)
        found["put and get, a number"] = median(small, 100)
        found["put and get, 20 MB"] = median(through, 20)
        if backend == "ray":
            found["a killed worker answers again"] = recovery(group)
        start = time.perf_counter()
    return {**found, "close, s": time.perf_counter() - start}


def recovery(group: Group) -> float:
    """Milliseconds from the kill to the answer of a call that was under way."""
    (pid,) = group.on(0).ping().wait()
    call = group.on(0).ping(0.2)
    start = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    call.wait()
    return 1e3 * (time.perf_counter() - start)


def main() -> int:
    logging.disable(logging.WARNING)
    local, remote = measure("local"), measure("ray")
    print("| what | in process | Ray, another process | MB/s |\n|---|--:|--:|--:|")
    for name, value in remote.items():
        here = f"{local[name]:.3f}" if name in local else "–"
        speed = f"{SIZE / 1e3 / value:,.0f}" if "20 MB" in name and "reference" not in name else ""
        print(f"| {name} | {here} | {value:.2f} | {speed} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
