"""Prints the cost of one frame at each size, for each OpenGL back end, and stepping with pictures on demand."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

SIZES = (64, 128, 224)
FRAMES = 64


def measure(repeat: int) -> dict[str, float]:
    """Milliseconds per frame at each size (median of `repeat`), in this process with its back end."""
    import numpy as np

    from referee.config import PandaEnvConfig
    from referee.envs import make_vec

    results = {}
    for size in SIZES:
        env = make_vec(PandaEnvConfig(task="PickCube", num_envs=FRAMES // 2, image_size=size))
        env.reset(seed=0)
        env.render_cameras([0])
        times = []
        for _ in range(repeat):
            env.step(np.zeros((FRAMES // 2, 4), np.float32))
            start = time.perf_counter()
            env.render_cameras()  # two cameras, so FRAMES frames
            times.append((time.perf_counter() - start) / FRAMES * 1e3)
        results[str(size)] = statistics.median(times)
        env.close()
    return results


def on_demand(share: float, seconds: float, num_envs: int = 64) -> float:
    """Env-steps/s when a `share` of the environments is drawn (two 64 px views) at every step."""
    import numpy as np

    from referee.config import PandaEnvConfig
    from referee.envs import make_vec

    env = make_vec(PandaEnvConfig(task="PickCube", num_envs=num_envs))
    env.reset(seed=0)
    random = np.random.default_rng(0)
    ids = np.arange(round(share * num_envs))
    if len(ids):
        env.render_cameras([0])
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        env.step(random.uniform(-1, 1, (num_envs, 4)).astype(np.float32))
        if len(ids):
            env.render_cameras(ids)
        steps += num_envs
    rate = steps / (time.perf_counter() - start)
    env.close()
    return rate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.repeat)), flush=True)
        os._exit(0)

    from referee.sim import gl

    print("| back end | " + " | ".join(f"{size} px" for size in SIZES) + " |  (ms per frame, PickCube, median)")
    print("|---|" + "---:|" * len(SIZES))
    for backend in gl.BACKENDS:
        command = [sys.executable, __file__, "--child", "--repeat", str(args.repeat)]
        run = subprocess.run(command, env={**os.environ, "MUJOCO_GL": backend}, capture_output=True, text=True)
        if run.returncode:
            print(f"| {backend} | {run.stderr.strip().splitlines()[-1]} |")
            continue
        results = json.loads(run.stdout.splitlines()[-1])
        print(f"| {backend} | " + " | ".join(f"{results[str(size)]:.2f}" for size in SIZES) + " |")
    print(f"\nchosen by itself: {gl.choose()}\n")
    print("| drawn at each step, of 64 envs (two 64 px views each) | env-steps/s |\n|---|---:|")
    for share, name in ((0.0, "none"), (1 / 64, "one"), (0.25, "a quarter"), (1.0, "all")):
        print(f"| {name} | {on_demand(share, args.seconds):,.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
