"""Prints a shuffled epoch over train.pt against a list of separate tensors, and what it costs to build a dataset.

Each number comes from a process of its own: its time begins after the imports and includes opening the file. The files
are in the page cache for all. Private memory is the sum of Private_* in /proc/self/smaps_rollup, at its highest.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FRAMES, PIXELS, BATCH, SEED = 20_000, 128, 256, 7
EPISODES, STATES = 500, 50


def private_mb() -> float:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def epoch(way: str, path: Path) -> dict[str, float]:
    """Open the file and see every frame once, shuffled, in batches of uint8 images and labels."""
    import torch
    from torch.utils.data import DataLoader

    from referee.datasets.payload import RewardBinaryDataset

    torch.set_num_threads(1)
    order = torch.randperm(FRAMES, generator=torch.Generator().manual_seed(SEED))
    imported, highest, checksum, frames = private_mb(), 0.0, 0, 0
    start = time.perf_counter()
    batches: Any
    if way == "epoch":
        batches = RewardBinaryDataset(path).epoch(BATCH, seed=SEED)
    elif way == "loader":
        batches = DataLoader(RewardBinaryDataset(path), batch_size=BATCH, sampler=order.tolist())
    else:
        payload = torch.load(path, weights_only=True)
        pairs = list(zip(payload["images"], payload["labels"], strict=True))
        batches = DataLoader(pairs, batch_size=BATCH, sampler=order.tolist())  # type: ignore[arg-type]
    opened = time.perf_counter() - start
    measuring = 0.0
    for number, (images, labels) in enumerate(batches):
        assert images.dtype == torch.uint8 and images.shape[1:] == (PIXELS, PIXELS, 3)
        frames += len(labels)
        # Depends on the order, the pixels and the labels: all ways must show the same batches.
        checksum = (checksum * 31 + int(images[:, ::64, ::64].sum()) + 7 * int(labels.sum())) % 2**61
        if number % 20 == 0 or frames == FRAMES:
            before = time.perf_counter()
            highest = max(highest, private_mb())
            measuring += time.perf_counter() - before
    assert frames == FRAMES
    seconds = time.perf_counter() - start - measuring
    return {"open": opened, "seconds": seconds, "imported": imported, "private": highest, "checksum": checksum}


def convert(store: Path, output: Path) -> dict[str, float]:
    """Build train.pt and val.pt from a store."""
    from referee.config.datasets import FrameConfig
    from referee.datasets.frames import build_frames
    from referee.episodes import EpisodeStore

    start = time.perf_counter()
    summary = build_frames(EpisodeStore(store), output, FrameConfig())
    seconds = time.perf_counter() - start
    frames = summary.train.success + summary.train.fail + summary.val.success + summary.val.fail
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "frames": frames, "peak": peak}


def write_files(folder: Path) -> None:
    """The same frames as our train.pt and as a list of separate tensors."""
    import numpy as np
    import torch

    from referee.datasets.payload import PayloadWriter

    random = np.random.default_rng(0)
    images = random.integers(0, 256, (FRAMES, PIXELS, PIXELS, 3), dtype=np.uint8)
    labels = (np.arange(FRAMES) % 5 == 0).astype(int)
    with PayloadWriter(folder / "train.pt") as writer:
        for start in range(0, FRAMES, 1000):
            writer.add(images[start : start + 1000, None], labels[start : start + 1000])
        writer.finish({"source": "benchmark"})
    separate = [torch.from_numpy(image.copy()) for image in images]
    torch.save({"images": separate, "labels": labels.tolist(), "metadata": {}}, folder / "separate.pt")


def write_store(folder: Path) -> None:
    """500 episodes, every other one with success in its last third."""
    import numpy as np

    from referee.episodes import Episode, EpisodeStore, Meta

    store, random, steps = EpisodeStore(folder), np.random.default_rng(0), STATES - 1
    for number in range(EPISODES):
        images = random.integers(0, 256, (STATES, PIXELS, PIXELS, 3), dtype=np.uint8)
        zeros = np.zeros(steps, bool)
        success = (np.arange(STATES) >= 2 * STATES // 3) & bool(number % 2)
        actions, rewards = np.zeros((steps, 4), np.float32), np.zeros(steps, np.float32)
        meta = Meta(id=f"{number:06d}", cameras=("front",))
        store.append(Episode({"main_images": images}, actions, rewards, zeros, zeros, success, meta=meta))


def child(*arguments: object) -> dict[str, float]:
    """Run one measurement in a fresh process."""
    run = subprocess.run(
        [sys.executable, __file__, "--child", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if run.returncode:
        sys.exit(run.stderr)
    return json.loads(run.stdout.splitlines()[-1])


def warm(path: Path) -> None:
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where 4 GB of temporary files go")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        what, *rest = args.child
        if what in ("files", "store"):
            {"files": write_files, "store": write_store}[what](Path(rest[0]))
            print("{}")
        else:
            print(
                json.dumps(convert(Path(rest[0]), Path(rest[1])) if what == "convert" else epoch(what, Path(rest[0])))
            )
        return 0

    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        child("files", folder)
        ways = {"separate": folder / "separate.pt", "epoch": folder / "train.pt", "loader": folder / "train.pt"}
        runs: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for _ in range(args.repeat):
            for way, path in ways.items():
                warm(path)
                runs[way].append(child(way, path))
        assert len({run["checksum"] for each in runs.values() for run in each}) == 1, "the batches differ"
        middle = {
            way: {name: statistics.median(run[name] for run in each) for name in each[0]} for way, each in runs.items()
        }
        usual = middle["separate"]
        names = {
            "separate": "torch.load of separate tensors, DataLoader",
            "epoch": "train.pt, RewardBinaryDataset.epoch",
            "loader": "train.pt, RewardBinaryDataset in a DataLoader",
        }
        print(f"one shuffled epoch, {FRAMES} frames of {PIXELS} px, batches of {BATCH}; medians of {args.repeat}\n")
        print("| way | open s | open + epoch s | faster | private MB | of the usual | beyond the imports MB |")
        print("|---|---:|---:|---:|---:|---:|---:|")
        for way, values in middle.items():
            print(
                f"| {names[way]} | {values['open']:.2f} | {values['seconds']:.2f} "
                f"| {usual['seconds'] / values['seconds']:.1f}× | {values['private']:.0f} "
                f"| 1/{usual['private'] / values['private']:.1f} | {values['private'] - values['imported']:.0f} |"
            )
        for path in ways.values():
            path.unlink(missing_ok=True)
        child("store", folder / "store")
        done = child("convert", folder / "store", folder / "data")
        megabytes = done["frames"] * PIXELS * PIXELS * 3 / 1e6
        print(f"\nbuilding from {EPISODES} episodes × {STATES} frames × {PIXELS} px ({megabytes:.0f} MB of images):")
        print(f"{done['seconds']:.1f} s, {megabytes / done['seconds']:.0f} MB/s, peak resident {done['peak']:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
