"""Prints what recording costs: steps per second with and without it, interleaved in one process.

Episodes go to the folder for temporary files, or where --folder says. ext4 does not use an inode again for five minutes
after its file was deleted, and looks at all of them whenever it makes a file: after the deletion of thousands of files
one takes a millisecond instead of 40 µs. The time of making an empty file is printed, too; see --keep.
"""

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


def make_files(folder: Path, count: int = 100) -> float:
    """Seconds to make an empty file in a folder, the median of some."""
    spent = []
    (folder / "empty").mkdir()
    for number in range(count):
        start = time.perf_counter()
        (folder / "empty" / str(number)).touch(exist_ok=False)
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where episodes go (default: the folder for temporary files)")
    parser.add_argument("--keep", action="store_true", help="leave the episodes there: another run follows soon")
    args = parser.parse_args()
    folders: list[Path] = []
    empty: list[float] = []
    print(f"PickCube, {args.envs} envs, episodes of 50 steps, written and flushed to disk while stepping\n")
    print("| recorded | plain, steps/s | recorded, steps/s | recorded / plain | MB/s written |")
    print("|---|---:|---:|---:|---:|")
    for name, cameras, steps in (("state only", (), 600), ("state and two 64 px cameras", ("front", "side"), 100)):
        folder = Path(tempfile.mkdtemp(dir=args.folder))
        empty.append(make_files(folder))
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
        folders.append(folder)
        ratio = statistics.median(b / a for a, b in pairs)
        middle = [statistics.median(values) for values in zip(*pairs, strict=True)]
        print(
            f"| {name} | {middle[0]:,.0f} | {middle[1]:,.0f} | {ratio:.2f} | {size / 1e6 / seconds:.1f} |", flush=True
        )
    print(f"\nmaking an empty file took {1e6 * max(empty):.0f} µs")
    for folder in [] if args.keep else folders:  # at the end: what follows a deletion is slower
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
