"""Prints what it costs to read a folder of 500 pickled episodes, .npy trajectories or a train.pt in a limited process.

Each number is the median of pairs: the same folder is read in this process (REFEREE_READER=inline) and in the process
that `referee` uses, one after the other, in turns. Each episode's bytes are summed, as a consumer would touch them. The
first pair, in which that process starts, is left out and printed on its own.
"""

import argparse
import os
import pickle
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from referee.episodes import Episode, Meta
from referee.episodes.formats.detect import read_any
from referee.episodes.formats.npy import NpyWriter
from referee.episodes.formats.pickled import frames_of, lists_of
from referee.reading.safe_load import READER

STATES = 50


def episode(pixels: int, seed: int) -> Episode:
    random = np.random.default_rng(seed)
    steps = STATES - 1
    return Episode(
        observations={
            "main_images": random.integers(0, 256, (STATES, pixels, pixels, 3), np.uint8),
            "states": random.normal(size=(STATES, 24)).astype(np.float32),
        },
        actions=random.normal(size=(steps, 7)).astype(np.float32),
        rewards=np.zeros(steps, np.float32),
        terminated=np.zeros(steps, bool),
        truncated=np.arange(steps) == steps - 1,
        success=np.arange(STATES) > STATES - 5,
        meta=Meta(task="PickCube", cameras=("front",)),
    )


def write(folder: Path, layout: str, pixels: int, count: int) -> None:
    folder.mkdir()
    if layout == "trajectories (.npy)":
        writer = NpyWriter(folder / "positive", folder / "negative")
        for seed in range(count):
            writer.append(episode(pixels, seed % 20))
        return
    content = frames_of if layout == "frames (.pkl)" else lists_of
    for seed in range(count):
        (folder / f"episode_{seed:06d}.pkl").write_bytes(pickle.dumps(content(episode(pixels, seed % 20)), 4))


def read_folder(folder: Path) -> int:
    total = 0
    for each in read_any(folder):
        total += sum(int(array.view(np.uint8).sum()) for array in each.arrays().values() if array.size)
    return total


def pair(read: Callable[[], int]) -> tuple[float, float]:
    """Seconds in this process and in the other, which must give the same."""
    seconds, totals = [], []
    for mode in ("inline", ""):
        os.environ[READER] = mode
        start = time.perf_counter()
        totals.append(read())
        seconds.append(time.perf_counter() - start)
    assert totals[0] == totals[1]
    return seconds[0], seconds[1]


def measure(name: str, read: Callable[[], int], pairs: int) -> None:
    first = pair(read)
    ratios, here, there = [], [], []
    for _ in range(pairs):
        inline, limited = pair(read)
        ratios.append(limited / inline)
        here.append(inline)
        there.append(limited)
    ratio, low, high = statistics.median(ratios), min(ratios), max(ratios)
    print(
        f"{name:34} {statistics.median(here):8.2f} s {statistics.median(there):8.2f} s {ratio:6.2f} "
        f"({low:.2f} to {high:.2f}) {first[1] - first[0]:+8.2f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--pairs", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{'':34} {'in process':>10} {'limited':>10} {'ratio':>6} (range)        first pair")
    with tempfile.TemporaryDirectory() as folder:
        for layout in ("episode (.pkl)", "frames (.pkl)", "trajectories (.npy)"):
            for pixels in (64, 128):
                place = Path(folder) / f"{layout[:3]}{pixels}"
                write(place, layout, pixels, arguments.episodes)
                measure(f"{layout}, {pixels} px", lambda place=place: read_folder(place), arguments.pairs)  # type: ignore[misc]


if __name__ == "__main__":
    main()
