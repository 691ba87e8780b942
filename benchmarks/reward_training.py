"""Prints how good reward models are after seconds of training, and how soon: PickCube, two cameras of 64 px.

Episodes are recorded once into .bench/reward_training: 200 to train and validate on, 600 to tune this benchmark and the
defaults with, and 600 fresh ones that only the tables printed by a plain run look at. All actors are the scripted
expert; the noise on its actions goes evenly from 0.2 to 1.4 over the episodes of a set, from hardly a stumble to hardly
a plan, so that about half fail.

quality   whole trainings (`training.recipe.train`, from recorded episodes to the saved artifact) with several seeds,
          each of which also splits the episodes anew; threshold and gate are chosen on the validation episodes. An
          episode is recalled in time when the gate fires at its first success or later, early when it fires before.
speed     seconds of training until held-out AUROC first reaches a level, against what people write first. Checks of
          AUROC are in nobody's time; opening the data is in everybody's.
encoders  frozen encoders: random, warmed up on the task's own frames, and the whole model trained.
"""

import argparse
import io
import logging
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from referee import cpu

cpu.cap_if_needed()

import numpy as np  # noqa: E402 - after the cap
import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from referee.audit.calibrate import calibrate  # noqa: E402
from referee.audit.judged import judge, views  # noqa: E402
from referee.audit.measure import Metrics, audit  # noqa: E402
from referee.config import PandaEnvConfig  # noqa: E402
from referee.config.datasets import DataConfig, FrameConfig  # noqa: E402
from referee.datasets.frames import build_frames  # noqa: E402
from referee.envs import make_vec  # noqa: E402
from referee.envs.policies import make_policy  # noqa: E402
from referee.episodes import EpisodeStore, Meta  # noqa: E402
from referee.episodes.recorder import Recorder  # noqa: E402
from referee.metrics.ranking import auroc  # noqa: E402
from referee.models import Artifact, Calibration  # noqa: E402
from referee.models.contract import MEAN, STD  # noqa: E402
from referee.models.resnet import DEFAULT_ARCH, ResNet  # noqa: E402
from referee.training.data import Data, open_data  # noqa: E402
from referee.training.fit import fit  # noqa: E402
from referee.training.options import FitOptions  # noqa: E402
from referee.training.recipe import (  # noqa: E402
    WARMUP_STEPS,
    TrainOptions,
    fit_model,
    make_model,
    train,
)
from referee.training.source import ImageSource  # noqa: E402

FOLDER = Path(".bench/reward_training")
SETS = {"train": (200, 0), "tuning": (600, 100_000), "fresh": (600, 200_000)}
"""Episodes, and the seed of the first one."""
NOISE = (0.2, 1.4)
CAMERAS = ("front", "side")
RESNET = {"model_type": "resnet", "arch": DEFAULT_ARCH}
LEVELS = (0.95, 0.98, 0.99, 0.995)


def recorded(name: str) -> EpisodeStore:
    """The episodes of a set, recorded the first time."""
    count, seed = SETS[name]
    folder = FOLDER / name
    if folder.exists() and len(EpisodeStore(folder).rows) == count:
        return EpisodeStore(folder)
    env = make_vec(PandaEnvConfig(num_envs=count, cameras=CAMERAS))
    recorder = Recorder(env, lambda: EpisodeStore(folder), meta=Meta(task="PickCube", source="expert"))
    recorder.reset(seed=seed)
    expert, random = make_policy(env, "expert"), np.random.default_rng(seed)
    noise = random.permutation(np.linspace(*NOISE, count)).astype(np.float32)[:, None]
    for _ in range(env.max_episode_steps):
        actions = expert()
        actions += noise * random.standard_normal(actions.shape, dtype=np.float32)
        recorder.step(np.clip(actions, -1.0, 1.0))
    recorder.close()
    return EpisodeStore(folder)


# --- quality ---


@dataclass(frozen=True)
class Quality:
    """A whole training and what came of it."""

    way: str
    seed: int
    seconds: float
    steps: int
    val_auroc: float
    calibration: Calibration
    metrics: Metrics


def trained(
    way: str, seed: int, test: EpisodeStore, model: dict[str, Any], chosen: dict[str, Any], threads: int
) -> Quality:
    """Train on the 200 episodes, choose threshold and gate on the validation part of them, audit on others."""
    store = recorded("train")
    with tempfile.TemporaryDirectory() as name:
        options = TrainOptions(
            data=DataConfig(data_path=str(store.root), cameras=CAMERAS, split_seed=seed),
            output=Path(name),
            model={**RESNET, **model},
            fit=FitOptions(seed=seed, num_threads=threads, **chosen),
            cache_dir=Path(name) / "cache",
        )
        start = time.perf_counter()
        folder = train(options, Console(file=io.StringIO()))
        seconds = time.perf_counter() - start
        artifact = Artifact.load(folder)
    artifact.folder = None
    val = set(artifact.provenance["episodes"]["val"])
    choice = calibrate(judge(artifact, store, skip=lambda id: id not in val))
    artifact.recalibrate(Calibration(**choice.fields()))
    metrics, _ = audit(artifact, test, ablate=False)
    found = artifact.provenance
    return Quality(way, seed, seconds, found["step"], found["val"]["auroc"], artifact.calibration, metrics)


def quality_table(runs: Iterator[Quality]) -> None:
    print("| way | seed | whole training s | validation AUROC | threshold, gate | AUROC [95 %] "
          "| episode FPR (95 % upper bound) | episode recall, in time | … or a little early | ECE |")  # fmt: skip
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for run in runs:
        counts, metrics, point = run.metrics.counts, run.metrics, run.calibration
        auc, rate, recall = metrics["auroc"], metrics["episode_false_positive_rate"], metrics["episode_recall"]
        print(
            f"| {run.way} | {run.seed} | {run.seconds:.1f} | {run.val_auroc:.4f} "
            f"| {point.threshold:.2f}, {point.gate_k} of {point.gate_n} "
            f"| {auc.value:.4f} [{auc.low:.4f}, {auc.high:.4f}] "
            f"| {counts['paid']}/{counts['failing_episodes']} = {rate.value:.1%} ({rate.high:.1%}) "
            f"| {counts['detected']}/{counts['success_episodes']} = {recall.value:.1%} "
            f"| {(counts['detected'] + counts['early']) / counts['success_episodes']:.1%} "
            f"| {metrics['ece'].value:.4f} |",
            flush=True,
        )


FULL: tuple[str, dict[str, Any], dict[str, Any]] = ("full fine-tuning", {}, {})
FROZEN: tuple[str, dict[str, Any], dict[str, Any]] = ("frozen, cached", {"freeze_encoder": True}, {})


def quality(test: EpisodeStore, seeds: list[int], threads: int) -> None:
    print(f"\n## Quality: 200 episodes (160 to train, 40 to validate), judged on {len(test.rows)} others\n")
    quality_table(trained(way, seed, test, *rest, threads) for way, *rest in (FULL, FROZEN) for seed in seeds)


def encoders(test: EpisodeStore, seeds: list[int], threads: int) -> None:
    print("\n## Which encoder: the same episodes\n")
    ways = []
    for kind in ("resnet", "binary_classifier"):
        frozen = {"model_type": kind, "freeze_encoder": True}
        ways.append((f"{kind}, frozen, random", frozen, {"encoder_warmup_steps": 0}))
        ways.append((f"{kind}, frozen after a warm-up", frozen, {}))
        ways.append((f"{kind}, all of it trained", {"model_type": kind}, {}))
    quality_table(trained(way, seed, test, *rest, threads) for way, *rest in ways for seed in seeds)


# --- speed ---


@dataclass
class Race:
    """A clock that stands still while held-out AUROC is measured."""

    images: Tensor
    """uint8[n,V,H,W,3]"""
    labels: np.ndarray
    limit: float
    seconds: float = 0.0
    curve: list[tuple[float, float]] = field(default_factory=list)
    _since: float = field(default_factory=time.perf_counter)

    def check(self, logits: Callable[[Tensor], Tensor]) -> bool:
        """Note the AUROC of now; whether it is time to stop."""
        self.seconds += time.perf_counter() - self._since
        with torch.inference_mode():
            found = torch.cat([logits(part) for part in self.images.split(64)]).numpy()
        self.curve.append((self.seconds, auroc(self.labels, found)))
        self._since = time.perf_counter()
        return self.curve[-1][1] >= LEVELS[-1] or self.seconds > self.limit

    def reached(self, level: float) -> float:
        """Seconds until the level was first reached; nan for never."""
        return next((seconds for seconds, found in self.curve if found >= level), math.nan)


def floats(images: Tensor) -> Tensor:
    """uint8[…,H,W,3] → normalised f32[…,3,H,W], as tutorials write it."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return (images.movedim(-1, -3).contiguous().float() / 255 - mean) / std


def list_of_tensors(path: Path) -> DataLoader[Any]:
    """All frames as float tensors in a list."""
    payload = torch.load(path, weights_only=True)
    both = zip(payload["images"], payload["extra_view_images"], strict=True)
    views = (torch.cat([main[None], extra]) for main, extra in both)
    pairs = [(floats(each), float(label)) for each, label in zip(views, payload["labels"], strict=True)]
    return DataLoader(pairs, batch_size=32, shuffle=True)  # type: ignore[arg-type]


class Plain(nn.Module):
    """A ResNet for both views, in NCHW, and a head on their features side by side."""

    def __init__(self, arch: str, head: int) -> None:
        super().__init__()
        self.encoder = ResNet(arch)
        width = len(CAMERAS) * self.encoder.channels
        self.head = (
            nn.Sequential(nn.Linear(width, head), nn.ReLU(), nn.Linear(head, 1)) if head else nn.Linear(width, 1)
        )

    def features(self, x: Tensor) -> Tensor:
        return self.encoder(x.flatten(0, 1)).mean((2, 3)).reshape(len(x), -1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))[:, 0]


def plain_fine_tuning(path: Path, race: Race, seed: int) -> None:
    """(a) Everything learns, in eager fp32."""
    torch.manual_seed(seed)
    loader, net = list_of_tensors(path), Plain("resnet18", head=0)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    for step, (images, labels) in enumerate(forever(loader), 1):
        net.train()
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(net(images), labels.float()).backward()
        optimizer.step()
        net.eval()
        if step % 20 == 0 and race.check(lambda images: net(floats(images))):
            return


def frozen_every_epoch(path: Path, race: Race, seed: int) -> None:
    """(b) A head on a frozen encoder of random weights, which sees every frame again in every epoch."""
    torch.manual_seed(seed)
    loader, net = list_of_tensors(path), Plain("resnet10", head=256).eval()
    optimizer = torch.optim.Adam(net.head.parameters(), lr=1e-3)
    for step, (images, labels) in enumerate(forever(loader), 1):
        with torch.no_grad():
            features = net.features(images)
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(net.head(features)[:, 0], labels.float()).backward()
        optimizer.step()
        if step % 100 == 0 and race.check(lambda images: net(floats(images))):
            return


def warmed_up_every_epoch(path: Path, race: Race, seed: int, threads: int) -> None:
    """(b') The same with our encoder, after our warm-up: what the cache alone is worth."""
    with tempfile.TemporaryDirectory() as name:
        options, data = recipe(path, Path(name), seed, threads, {"freeze_encoder": True}, {})
        model = make_model(options, data, lambda line: None)
        short = replace(options.fit, max_steps=WARMUP_STEPS, best_metric="train_accuracy")
        fit(model.freeze(False), ImageSource(data.train, short.augment), None, short)
        model.freeze(True).eval()
        loader = list_of_tensors(path)
        optimizer = torch.optim.Adam(model.trainable_parameters(), lr=1e-3)
        for step, (images, labels) in enumerate(forever(loader), 1):
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(model(images), labels.float()).backward()
            optimizer.step()
            if step % 25 == 0 and race.check(lambda images: torch.from_numpy(model.logits(images))):
                return


def ours(path: Path, race: Race, seed: int, threads: int, model: dict[str, Any], chosen: dict[str, Any]) -> None:
    """The recipe on the same files; its validations are in its time."""
    with tempfile.TemporaryDirectory() as name:
        options, data = recipe(path, Path(name), seed, threads, model, chosen)
        net = make_model(options, data, lambda line: None)
        steps = 0

        def stop() -> bool:
            nonlocal steps
            steps += 1
            often = 25 if net.spec.freeze_encoder else 5
            return steps % often == 0 and race.check(lambda images: torch.from_numpy(net.logits(images)))

        fit_model(net, data, options, stop=stop)


def recipe(
    path: Path, output: Path, seed: int, threads: int, model: dict[str, Any], chosen: dict[str, Any]
) -> tuple[TrainOptions, Data]:
    """Options and opened data of a training on train.pt and val.pt."""
    where = DataConfig(train_data_paths=(str(path),), val_data_paths=(str(path.with_name("val.pt")),))
    steps = WARMUP_STEPS if model.get("freeze_encoder") else None
    options = TrainOptions(
        data=where, output=output, model={**RESNET, **model}, cache_dir=output / "cache",
        fit=FitOptions(seed=seed, num_threads=threads, encoder_warmup_steps=steps, **chosen),
    )  # fmt: skip
    return options, open_data(where, output)


def forever(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def speed(test: EpisodeStore, seeds: list[int], threads: int, limit: float, only: tuple[str, ...]) -> None:
    """Print seconds to each level."""
    frames = FOLDER / "frames"
    if not (frames / "train.pt").exists():
        build_frames(recorded("train"), frames, FrameConfig(split_seed=0), cameras=CAMERAS)
    some = [test.read(id) for id in list(test.rows)[:200]]
    images = torch.from_numpy(np.concatenate([views(each, CAMERAS, slice(None, None, 8)) for each in some]))
    labels = np.concatenate([each.success[::8] for each in some if each.success is not None]).astype(int)
    ways: dict[str, Callable[[Path, Race, int], None]] = {
        "(a) ResNet18, all of it, list of tensors": plain_fine_tuning,
        "(b) head on a frozen ResNet10, random, encoded every epoch": frozen_every_epoch,
        "(b') head on our warmed-up encoder, encoded every epoch": lambda *rest: warmed_up_every_epoch(*rest, threads),
        "ours, all of it": lambda *rest: ours(*rest, threads, {}, {}),
        "ours, frozen and cached": lambda *rest: ours(*rest, threads, {"freeze_encoder": True}, {}),
    }
    print(f"\n## Seconds to a held-out AUROC, {threads} thread(s), on {len(labels)} frames of 200 other episodes\n")
    print("| way | seed | " + " | ".join(f"{level}" for level in LEVELS) + " | highest, after s |")
    print("|---|---:|" + "---:|" * (len(LEVELS) + 1))
    for name, way in ((name, way) for name, way in ways.items() if name.startswith(only)):
        for seed in seeds:
            race = Race(images, labels, limit)
            way(frames / "train.pt", race, seed)
            cells = [f"{race.reached(level):.1f}" for level in LEVELS]
            best = max(race.curve, key=lambda point: point[1])
            shown = " | ".join("–" if cell == "nan" else cell for cell in cells)
            print(f"| {name} | {seed} | {shown} | {best[1]:.4f}, {race.seconds:.0f} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", help="quality, speed, encoders (default: all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--on", choices=("fresh", "tuning"), default="fresh", help="episodes to judge on")
    parser.add_argument("--only", nargs="+", default=[""], help="ways of the race, by how their names begin")
    parser.add_argument("--limit", type=float, default=600, help="seconds after which a way of the race gives up")
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # episodes of a noisy expert flicker, and are meant to
    torch.set_num_threads(args.threads)
    recorded("train")
    test = recorded(args.on)
    for table in args.tables or ["quality", "speed", "encoders"]:
        if table == "speed":
            speed(test, args.seeds, args.threads, args.limit, tuple(args.only))
        else:
            {"quality": quality, "encoders": encoders}[table](test, args.seeds, args.threads)
    return 0


if __name__ == "__main__":
    sys.exit(main())
