"""Prints what recording costs: steps per second with and without it, interleaved in one process."""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from referee.config import PandaEnvConfig
from referee.envs import RefereeVectorEnv, make_vec
from referee.episodes import EpisodeStore
from referee.episodes.recorder import Recorder


def rate(env: RefereeVectorEnv, steps: int, *, draw: bool) -> float:
    """Env-steps per second of random actions, with all cameras drawn at each state if asked."""
    random = np.random.default_rng(0)
    actions = random.uniform(-1, 1, (steps, env.num_envs, 4)).astype(np.float32)
    start = time.perf_counter()
    for action in actions:
        *_, terminated, truncated, _ = env.step(action)
        if draw:
            env.render_cameras()
            if (terminated | truncated).any():
                env.render_cameras(final=True)
    return steps * env.num_envs / (time.perf_counter() - start)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=7)
    args = parser.parse_args()
    print(f"PickCube, {args.envs} envs, episodes of 50 steps, written and flushed to disk while stepping\n")
    print("| recorded | plain, steps/s | recorded, steps/s | recorded / plain | MB/s written |")
    print("|---|---:|---:|---:|---:|")
    for name, cameras, steps in (("state only", (), 600), ("state and two 64 px cameras", ("front", "side"), 100)):
        folder = Path(tempfile.mkdtemp(dir="."))
        config = PandaEnvConfig(num_envs=args.envs)
        plain = make_vec(config)
        recorder = Recorder(make_vec(config), lambda folder=folder: EpisodeStore(folder), cameras=cameras)  # type: ignore[misc]
        plain.reset(seed=0)
        recorder.reset(seed=0)
        rate(plain, 20, draw=bool(cameras))
        rate(recorder, 20, draw=False)
        pairs, seconds = [], 0.0
        for _ in range(args.repeat):
            plainly = rate(plain, steps, draw=bool(cameras))
            start = time.perf_counter()
            recorded = rate(recorder, steps, draw=False)
            recorder.flush()  # the disk's part is counted, too
            spent = time.perf_counter() - start
            recorded = min(recorded, steps * args.envs / spent)
            seconds += spent
            pairs.append((plainly, recorded))
        recorder.close()
        size = sum(row.bytes for row in EpisodeStore(folder).rows.values())
        shutil.rmtree(folder)
        ratio = statistics.median(b / a for a, b in pairs)
        middle = [statistics.median(values) for values in zip(*pairs, strict=True)]
        print(
            f"| {name} | {middle[0]:,.0f} | {middle[1]:,.0f} | {ratio:.2f} | {size / 1e6 / seconds:.1f} |", flush=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
