"""Prints what it costs to verify checksums, beside what each reader does with what it reads.

Each reader works with verification and without, in turns. A row is the median of its CPU milliseconds without, and the
median, first and third quartile of the ratio over pairs: CPU time is what other work on the machine disturbs least.
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from rich.console import Console

from referee import checksums
from referee.config.datasets import FrameConfig
from referee.config.reward_training import AugmentConfig
from referee.datasets.convert import ConvertOptions
from referee.datasets.convert import convert as convert_episodes
from referee.datasets.frames import build_frames
from referee.datasets.payload import RewardBinaryDataset
from referee.episodes import Episode, EpisodeStore, Meta
from referee.episodes.formats import native
from referee.models import artifact
from referee.models.registry import build
from referee.models.spec import ModelSpec
from referee.rl import checkpoint as policies
from referee.rl.policy import PolicySpec
from referee.rl.squashed import make_policy
from referee.training import checkpoint as reward_checkpoint
from referee.training.augment import augment

EPISODES, STATES, PIXELS = 200, 50, 128
QUIET = Console(quiet=True)


def episode(seed: int) -> Episode:
    random = np.random.default_rng(seed)
    steps = STATES - 1
    return Episode(
        observations={"main_images": random.integers(0, 256, (STATES, PIXELS, PIXELS, 3), np.uint8)},
        actions=random.normal(size=(steps, 7)).astype(np.float32),
        rewards=np.zeros(steps, np.float32),
        terminated=np.zeros(steps, bool),
        truncated=np.arange(steps) == steps - 1,
        success=np.arange(STATES) > STATES - 5 - seed % 9,
        meta=Meta(task="PickCube", cameras=("front",)),
    )


def unverified() -> contextlib.ExitStack:
    """Every reader of this program takes what it reads as it is."""
    stack = contextlib.ExitStack()
    for place, name, answer in (
        (native, "_is_whole", True), (checksums, "verify_zip", None), (checksums, "verify_sums", True),
        (artifact, "_check", None),
    ):  # fmt: skip
        stack.enter_context(mock.patch.object(place, name, lambda *_, answer=answer, **__: answer))
    return stack


def measure(name: str, size: int, read: Callable[[], object], pairs: int) -> None:
    """One row; the first pair, which fills caches, is left out."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for number in range(pairs + 1):
        for verify in (True, False) if number % 2 else (False, True):
            with contextlib.nullcontext() if verify else unverified():
                start = time.process_time()
                read()
                seconds[verify].append(time.process_time() - start)
    ratios = sorted(a / b for a, b in zip(seconds[True][1:], seconds[False][1:], strict=True))
    low, ratio, high = statistics.quantiles(ratios, n=4)
    without = 1000 * statistics.median(seconds[False][1:])
    print(f"| {name} | {size / 1e6:,.0f} | {without:,.1f} | {ratio:.3f} | {low:.3f} to {high:.3f} |", flush=True)


def epoch(path: Path) -> None:
    """One epoch of batches as training draws them, without the network."""
    random = np.random.default_rng(0)
    for images, _ in RewardBinaryDataset(path).epoch(256, seed=0):
        augment(images, AugmentConfig(), random)


def stored(folder: Path) -> EpisodeStore:
    store = EpisodeStore(folder / "store")
    for start in range(0, EPISODES, 20):
        store.append_many([episode(seed) for seed in range(start, start + 20)])
    return store


def reward_model(folder: Path) -> Path:
    model = build(ModelSpec(arch="resnet18", cameras=("main_images",), image_size=PIXELS))
    artifact.Artifact(model, provenance={"train": [], "val": []}).save(folder / "model")
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    values = {"epoch": 1, "model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict(),
              "train_loss": 0.1, "train_acc": 0.9}  # fmt: skip
    reward_checkpoint.save(folder / "checkpoint.pt", values)
    return folder / "checkpoint.pt"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    pairs = parser.parse_args().pairs
    torch.set_num_threads(1)
    print("| reader | MB read | CPU ms without | ratio with | quartiles |\n|---|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        store = stored(folder)
        size = sum(path.stat().st_size for path in (folder / "store" / "episodes").iterdir())

        def convert(export_format: str) -> None:
            with tempfile.TemporaryDirectory(dir=folder) as out:
                convert_episodes(store.root, Path(out) / "x", QUIET, ConvertOptions(export_format=export_format))

        def frames() -> None:
            with tempfile.TemporaryDirectory(dir=folder) as out:
                build_frames(EpisodeStore(store.root), out)

        for name in ("native", "npy"):
            measure(f"`episodes convert` to {name}", size, lambda name=name: convert(name), pairs)  # type: ignore[misc]
        measure("`dataset frames`", size, frames, pairs)
        build_frames(store, folder / "data", FrameConfig(val_split=0.0))
        data = folder / "data" / "train.pt"
        measure("train.pt, one epoch of augmented batches", data.stat().st_size, lambda: epoch(data), pairs)
        checkpoint = reward_model(folder)
        measure("a reward model's checkpoint.pt", checkpoint.stat().st_size, lambda: load_all(checkpoint), pairs)
        weights = folder / "model" / "model.safetensors"
        measure("an artifact", weights.stat().st_size, lambda: artifact.Artifact.load(folder / "model"), pairs)
        policy = make_policy(
            PolicySpec("mlp", state_size=42, image_size=0, views=0, action_size=8, hidden_dims=(256, 256))
        )
        moments = {
            f"{name}.{part}": value.clone() for name, value in policy.state_dict().items() for part in ("m", "v")
        }
        about = {"task": "PickCube", "policy": policy.spec.to_json(), "iteration": 1}
        policies.save(folder / "policy", policies.Checkpoint(policy.state_dict(), moments, {"x": np.zeros(3)}, about))
        size = sum(path.stat().st_size for path in (folder / "policy").iterdir())
        measure("a policy's checkpoint", size, lambda: policies.load_policy(folder / "policy"), 10 * pairs)
    data_bytes = np.random.default_rng(0).integers(0, 256, 64 << 20, np.uint8).data
    for name, total in (("page sum", checksums.page_sum), ("CRC-32", checksums.crc32)):
        start = time.process_time()
        for _ in range(5):
            total(data_bytes)
        print(f"{name}: {5 * len(data_bytes) / (time.process_time() - start) / 1e9:.1f} GB/s")


def load_all(path: Path) -> None:
    """As a resumed training does: the values, and a model that holds them."""
    values = reward_checkpoint.load(path)
    model = build(ModelSpec(arch="resnet18", cameras=("main_images",), image_size=PIXELS))
    model.load_state_dict(values["model_state_dict"])
    torch.optim.AdamW(model.parameters()).load_state_dict(values["optimizer_state_dict"])


if __name__ == "__main__":
    main()
