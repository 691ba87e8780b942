"""Prints how steadily an arm is commanded: the 10 Hz loop on the twin, alone and with a reward model beside it.

A step takes 100 ms by the wall. Jitter is how far the time between two observations is from that; holds are steps in
which something was too old to move on. The twin is slower to answer than an arm (it computes physics and draws its
cameras in this process), so an arm does no worse. The reward model is a ResNet18 at 128 px with random weights: what it
says does not matter here, what it costs does. It judges each frame before the next step: in this process, in another
one on this machine (pictures through a pipe), or on another Ray node: a second raylet on this machine with an address
and an object store of its own, so pictures go from store to store, over no network.
"""

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np
import torch

from referee import cpu

cpu.cap_if_needed()

from cluster_speed import two_raylets  # noqa: E402
from referee.config import FrankaEnvConfig, RobotConfig  # noqa: E402 - after the cap
from referee.config.cluster import ClusterConfig, NodeGroupConfig, PlacementConfig  # noqa: E402
from referee.envs.franka.env import FrankaVectorEnv  # noqa: E402
from referee.envs.policies import make_policy  # noqa: E402
from referee.models import ModelSpec, build  # noqa: E402
from referee.runtime import Cluster, Rank, WorkerGroup  # noqa: E402

PIXELS = 128
Judge = Callable[[np.ndarray], float]


class Model:
    """The reward model, wherever it runs."""

    def __init__(self, rank: Rank | None = None) -> None:
        torch.set_num_threads(1)
        self._model = build(ModelSpec(arch="resnet18", image_size=PIXELS, cameras=("wrist",))).eval()

    def judge(self, frame: np.ndarray) -> float:
        """The logit of one frame uint8[H,W,3]."""
        return float(self._model.logits(frame[None])[0])


def answer(pipe: Connection) -> None:
    """The other process."""
    cpu.cap_if_needed()
    model = Model()
    pipe.send(model.judge(np.zeros((PIXELS, PIXELS, 3), np.uint8)))
    while (frame := pipe.recv()) is not None:
        pipe.send(model.judge(frame))


def loop(steps: int, judge: Judge | None) -> dict[str, float]:
    """Milliseconds: jitter, and what judging took; and how many steps held."""
    robot = RobotConfig(driver="twin", scene="PegInsertion")
    env = FrankaVectorEnv(FrankaEnvConfig(robot=robot, no_gripper=True, image_size=PIXELS, terminate_on_success=False,
                                          max_episode_steps=10 * steps))  # fmt: skip
    env.reset(seed=0)
    expert = make_policy(env, "expert", noise=0.3)
    ends, spent, holds = [], [], 0
    for step in range(steps + 10):
        observation, *_, info = env.step(expert())
        ends.append(time.monotonic())
        if judge is not None:
            judge(observation["main_images"][0])
            spent.append(time.monotonic() - ends[-1])
        holds += step >= 10 and "hold" in info
    env.close()
    jitter = np.abs(np.diff(ends[10:]) - 0.1) * 1e3
    found = {"jitter p50": np.percentile(jitter, 50), "jitter p99": np.percentile(jitter, 99), "worst": jitter.max()}
    return {**found, "judging p50": 1e3 * statistics.median(spent[10:]) if spent else 0.0, "holds": float(holds)}


def in_another_process(steps: int) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=answer, args=(theirs,), daemon=True)
    process.start()
    ours.recv()

    def judge(frame: np.ndarray) -> float:
        ours.send(frame)
        return float(ours.recv())

    found = loop(steps, judge)
    ours.send(None)
    process.join()
    return found


def on_another_node(steps: int) -> dict[str, float]:
    placed = {"reward": PlacementConfig(node_group="far", placement=0)}
    groups = (NodeGroupConfig(label="near", node_ranks=0), NodeGroupConfig(label="far", node_ranks=1))
    with two_raylets() as (address, token), Cluster(
        ClusterConfig(backend="ray", num_nodes=2, address=address, token_path=str(token), component_placement=placed,
                      node_groups=groups)
    ) as cluster:  # fmt: skip
        group = WorkerGroup(Model).launch(cluster, "reward")
        group.on(0).judge(np.zeros((PIXELS, PIXELS, 3), np.uint8)).wait()
        return loop(steps, lambda frame: float(group.on(0).judge(frame).wait()[0]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="of each loop (default 300: half a minute)")
    parser.add_argument("--no-ray", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    ways: dict[str, Callable[[], dict[str, float]]] = {
        "no reward model": lambda: loop(args.steps, None),
        "in this process": lambda: loop(args.steps, Model().judge),
        "in another process": lambda: in_another_process(args.steps),
    }
    if not args.no_ray:
        ways["on another node"] = lambda: on_another_node(args.steps)
    print(f"{args.steps} steps at 10 Hz, two cameras at {PIXELS} px; milliseconds\n")
    print(f"{'reward model':<20}{'jitter p50':>12}{'p99':>9}{'worst':>9}{'judging p50':>14}{'holds':>8}")
    for name, run in ways.items():
        found = run()
        print(f"{name:<20}{found['jitter p50']:>12.2f}{found['jitter p99']:>9.2f}{found['worst']:>9.2f}"
              f"{found['judging p50']:>14.1f}{found['holds']:>8.0f}", flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
