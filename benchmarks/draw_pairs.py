"""Prints what a drawn picture costs at full detail (MuJoCo's renderer) and as layers, in turns in one process.

First CPU time per picture at each size, then PPO on PickCube with every state drawn: two 64 px cameras, 64 envs.
"""

import argparse
import statistics
import sys
import time
from collections import defaultdict

import numpy as np

from referee import cpu

cpu.cap_if_needed()

from referee.config import PandaEnvConfig, load  # noqa: E402
from referee.envs.panda.env import PandaVectorEnv  # noqa: E402
from referee.learn.trainer import Trainer  # noqa: E402
from referee.sim.assets import Detail  # noqa: E402
from referee.sim.camera import Camera  # noqa: E402
from reward_speed import Drawing  # noqa: E402 - after the cap

DETAILS: tuple[Detail, Detail] = ("full", "fast")


def picture_costs(pixels: int, repeat: int, num_envs: int = 64) -> dict[str, float]:
    """Microseconds of CPU per picture, the least of `repeat` rounds, without helper processes."""
    env = PandaVectorEnv(PandaEnvConfig(task="PickCube", num_envs=num_envs, num_threads=1))
    env.reset(seed=0)
    cameras = {detail: Camera(env.task.scene, env.cameras, pixels, detail=detail, num_threads=1) for detail in DETAILS}
    costs: dict[str, list[float]] = defaultdict(list)
    for _ in range(repeat):
        env.step(np.zeros((num_envs, 4), np.float32))
        for detail, camera in cameras.items():
            start = time.process_time()
            camera.render(*env._scene_of(np.arange(num_envs), False))
            costs[detail].append((time.process_time() - start) / num_envs / len(env.cameras) * 1e6)
    for each in (env, *cameras.values()):
        each.close()
    return {detail: min(values[1:]) for detail, values in costs.items()}


def training_rates(repeat: int) -> dict[str, list[float]]:
    """Steps/s of PPO's iterations, drawn at full detail, drawn as layers and not drawn, in turns."""
    config = load("panda_ppo_mlp").config
    runs = {"full": Drawing(config), "fast": Drawing(config), "not drawn": Trainer(config)}
    env = runs["full"].env
    env._camera = Camera(env.task.scene, env.cameras, env.image_size, detail="full")
    rates: dict[str, list[float]] = defaultdict(list)
    for run in runs.values():
        run.iterate()
    for _ in range(repeat):
        for name, run in runs.items():
            start = time.perf_counter()
            run.iterate()
            rates[name].append(run.rollout.steps * run.rollout.num_envs / (time.perf_counter() - start))
    for run in runs.values():
        run.close()
    return rates


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="PPO iterations of each kind (0: none)")
    parser.add_argument("--rounds", type=int, default=12, help="of pictures")
    args = parser.parse_args()
    print("| pixels | full detail, µs | layers, µs | full / layers |\n|---:|---:|---:|---:|")
    for pixels in (64, 96, 128, 224):
        full, fast = picture_costs(pixels, args.rounds).values()
        print(f"| {pixels} | {full:.0f} | {fast:.0f} | {full / fast:.2f} |", flush=True)
    if args.repeat:
        rates = training_rates(args.repeat)
        print("\n| PPO on PickCube, every state drawn | steps/s | × full detail |\n|---|---:|---:|")
        for name, values in rates.items():
            ratio = statistics.median(a / b for a, b in zip(values, rates["full"], strict=True))
            print(f"| {name} | {statistics.median(values):,.0f} | {ratio:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
