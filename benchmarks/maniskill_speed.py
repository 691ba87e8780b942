"""Prints the steps per second of ManiSkill's tasks on a CPU: ManiSkill's own step and Referee's, in interleaved pairs.

Both act in one process each episode, with the same actions from the same start; time is CPU time, starts of episodes
included. With `--pool`, the whole vector environment is measured, too: wall-clock time, as many workers as cores.
"""

import argparse
import gc
import os
import statistics
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np

from referee.config import ManiSkillEnvConfig
from referee.envs import make_vec
from referee.envs.maniskill import vulkan

MODES = ("pd_joint_delta_pos", "pd_ee_delta_pos")
HORIZON = 50


def config(task: str, mode: str, **options: Any) -> ManiSkillEnvConfig:
    """Dense rewards where the task has them."""
    reward = "sparse" if task == "PlugCharger-v1" else "normalized_dense"
    return ManiSkillEnvConfig(task=task, control_mode=mode, reward_mode=reward, max_episode_steps=HORIZON, **options)


def make_worlds(task: str, mode: str) -> dict[str, Any]:
    """One environment with each kind of step."""
    from referee.envs.maniskill import world

    with mock.patch.object(world, "is_supported", return_value=False):
        plain = world.World(config(task, mode))
    fast = world.World(config(task, mode))
    if fast._fast is None:
        raise SystemExit(f"Referee takes ManiSkill's own step for {task}: there is nothing to compare")
    gc.freeze()  # as workers do: some tasks collect garbage at the start of each episode
    return {"plain": plain, "fast": fast}


def time_episode(world: Any, seed: int, actions: np.ndarray) -> tuple[float, np.ndarray]:
    """CPU seconds of an episode, and its last state."""
    start = time.process_time()
    world.begin([0], [seed])
    for action in actions:
        world.step(action)
        last = world.states, world.success
    return time.process_time() - start, last[0]


def pairs(task: str, mode: str, episodes: int) -> Iterator[tuple[float, float]]:
    """CPU seconds per episode of (plain, fast); who begins alternates."""
    worlds = make_worlds(task, mode)
    generator = np.random.default_rng(0)
    for episode in range(episodes + 1):
        actions = generator.uniform(-1, 1, (HORIZON, 1, worlds["fast"].facts.action_size)).astype(np.float32)
        names = ("plain", "fast") if episode % 2 else ("fast", "plain")
        results = {name: time_episode(worlds[name], episode, actions) for name in names}
        if results["plain"][1].tobytes() != results["fast"][1].tobytes():
            raise SystemExit(f"the states of {task} by {mode} differ after episode {episode}")
        if episode:  # the first warms up
            yield results["plain"][0], results["fast"][0]


def pool_speed(task: str, mode: str, *, num_envs: int, steps: int) -> float:
    """Steps per wall-clock second of the vector environment, random actions."""
    env = make_vec(config(task, mode, num_envs=num_envs))
    env.reset(seed=0)
    shape = (steps + HORIZON, *env.action_space.shape)
    actions = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    for step, action in enumerate(actions):
        if step == HORIZON:
            start = time.perf_counter()
        env.step(action)
    seconds = time.perf_counter() - start
    env.close()
    return num_envs * steps / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["PickCube-v1"])
    parser.add_argument("--episodes", type=int, default=40, help=f"pairs of episodes of {HORIZON} steps")
    parser.add_argument("--pool", type=int, default=0, metavar="STEPS", help="also time the vector environment")
    parser.add_argument("--num-envs", type=int, default=16, help="of the vector environment")
    args = parser.parse_args()
    if args.episodes < 1:
        parser.error("--episodes must be at least 1")

    import torch

    torch.set_num_threads(1)
    os.environ.update(vulkan.variables(gpu=False))
    print("| task | control mode | ManiSkill's step | Referee's | ratio (median of pairs) | 10-90 % |")
    print("|---|---|--:|--:|--:|---|")
    for task in args.tasks:
        for mode in MODES:
            times = np.array(list(pairs(task, mode, args.episodes)))
            plain, fast = (HORIZON / statistics.median(column) for column in times.T)
            ratios = times[:, 0] / times[:, 1]
            low, high = np.quantile(ratios, [0.1, 0.9])
            print(f"| {task} | {mode} | {plain:,.0f} | {fast:,.0f} | {np.median(ratios):.2f} | {low:.2f}-{high:.2f} |",
                  flush=True)  # fmt: skip
    print("\nSteps per second of CPU time, one process, random actions.")
    if args.pool:
        for task in args.tasks:
            for mode in MODES:
                speed = pool_speed(task, mode, num_envs=args.num_envs, steps=args.pool)
                print(f"{task} by {mode}, {args.num_envs} environments: {speed:,.0f} steps per second of wall clock")


if __name__ == "__main__":
    main()
