"""Prints how fast frames are scored: every back end against eager fp32 PyTorch, in one process.

Each timing of a back end follows one of eager PyTorch, and the ratio is that of the two: a machine's speed may change
from minute to minute.

Eager is what people write first: uint8 to float, permute, normalise, one forward of the whole batch in NCHW. All ways
begin with uint8 frames and end with logits. The model is trained here for a minute on frames of PickCube, and
back ends are compared with it on frames of other episodes.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from referee import cpu

cpu.cap_if_needed()

from referee.config import PandaEnvConfig  # noqa: E402 - after the cap
from referee.envs import make_vec  # noqa: E402
from referee.envs.policies import make_policy  # noqa: E402
from referee.metrics.ranking import auroc  # noqa: E402
from referee.models import Artifact, ModelSpec, Reference, RewardModel, backends, build  # noqa: E402
from referee.models.artifact import embed  # noqa: E402
from referee.models.contract import MEAN, STD, probability_of  # noqa: E402
from referee.models.resnet import ResNet  # noqa: E402

PIXELS, BATCH = 128, 256
WAYS = (("torch", False), ("compile", False), ("onnxruntime", False), ("openvino", False),
        ("onnxruntime", True), ("openvino", True))  # fmt: skip


def frames_of(episodes: int, seed: int, every: int) -> tuple[np.ndarray, np.ndarray]:
    """Frames uint8[n,H,W,3] of the side camera and their truth, of a noisy expert and of a blind one."""
    config = PandaEnvConfig(num_envs=episodes, image_size=PIXELS, cameras=("side",), num_threads=1)
    env = make_vec(config)
    _, info = env.reset(seed=seed)
    expert = make_policy(env, "expert", noise=0.6, seed=seed)
    random = np.random.default_rng(seed)
    blind = np.arange(episodes) % 4 == 0
    images, labels = [], []
    for step in range(config.max_episode_steps - 1):
        actions = expert()
        actions[blind] = random.uniform(-1, 1, actions[blind].shape)
        *_, info = env.step(actions)
        if step % every == 0:
            images.append(env.render_cameras()["main_images"])
            labels.append(info["success"].copy())
    env.close()
    return np.concatenate(images), np.concatenate(labels)


def train(images: np.ndarray, labels: np.ndarray, steps: int) -> RewardModel:
    """A ResNet10 after so many steps on balanced batches of 32."""
    torch.manual_seed(0)
    model = build(ModelSpec(arch="resnet10", image_size=PIXELS, cameras=("side",))).train()
    optimizer = torch.optim.AdamW(model.trainable_parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, steps)
    random = np.random.default_rng(0)
    sides = [np.flatnonzero(labels == value) for value in (True, False)]
    for _ in range(steps):
        chosen = np.concatenate([random.choice(side, 16) for side in sides])
        optimizer.zero_grad()
        model.loss(images[chosen], torch.from_numpy(labels[chosen])).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def eager(model: RewardModel) -> Callable[[np.ndarray], np.ndarray]:
    """The same weights as people run them first."""
    assert isinstance(model.encoder, ResNet)
    net = ResNet("resnet10").eval()
    net.load_state_dict(model.encoder.state_dict())
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))

    @torch.no_grad()
    def logits(images: np.ndarray) -> np.ndarray:
        x = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().float() / 255
        features = F.adaptive_avg_pool2d(net((x - mean) / std), 1).flatten(1)
        return model.head(features).numpy()

    return logits


def seconds_of(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--steps", type=int, default=60, help="training steps of the model")
    parser.add_argument("--latency", type=int, default=200, help="single frames scored one by one")
    parser.add_argument("--artifact", type=Path, help="kept here, and taken from here when it is there")
    parser.add_argument("--skip", nargs="*", default=[], help="back ends to leave out")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    fresh, truth = frames_of(48, seed=10_000, every=2)
    if args.artifact is not None and args.artifact.exists():
        artifact = Artifact.load(args.artifact)
    else:
        images, labels = frames_of(96, seed=0, every=3)
        spent = time.perf_counter()
        model = train(images, labels, args.steps)
        print(f"trained on {len(images)} frames in {time.perf_counter() - spent:.0f} s", flush=True)
        artifact = Artifact(model, reference=Reference.of(embed(model, images[::4]), images))
        with tempfile.TemporaryDirectory() as folder:
            artifact.save(args.artifact or Path(folder) / "model")
            artifact = Artifact.load(args.artifact or Path(folder) / "model")
    model = artifact.model
    assert artifact.reference is not None

    baseline = eager(model)
    ways: dict[str, Callable[[np.ndarray], np.ndarray]] = {"eager fp32": baseline, "the model itself": model.logits}
    begun: dict[str, float] = {}
    for backend, int8 in WAYS:
        if backend in args.skip:
            continue
        start = time.perf_counter()
        scorer = backends.make(model, artifact.reference.frames, backend=backend, int8=int8, threads=args.threads)
        scorer.logits(fresh[:BATCH])
        scorer.logits(fresh[:1])
        begun[scorer.name] = time.perf_counter() - start
        ways[scorer.name] = scorer.logits

    batch = fresh[:BATCH]
    times: dict[str, list[float]] = {name: [] for name in ways}
    latencies: dict[str, list[float]] = {name: [] for name in ways}
    for run in [baseline, model.logits]:
        run(batch)
    ratios: dict[str, list[float]] = {name: [1.0] for name in ways}
    for _ in range(args.repeat):
        for name, way in list(ways.items())[1:]:
            times["eager fp32"].append(seconds_of(lambda: baseline(batch)))
            times[name].append(seconds_of(lambda way=way: way(batch)))  # type: ignore[misc]
            ratios[name].append(times["eager fp32"][-1] / times[name][-1])
    for name, way in ways.items():
        way(batch[:1])
        for number in range(args.latency):
            frame = fresh[number : number + 1]
            latencies[name].append(1e3 * seconds_of(lambda way=way, frame=frame: way(frame)))  # type: ignore[misc]

    expected = np.concatenate([baseline(fresh[start : start + BATCH]) for start in range(0, len(fresh), BATCH)])
    exact = auroc(truth, expected)
    print(
        f"\nResNet10 at {PIXELS} px, batch {BATCH}, {args.threads} thread(s), {args.repeat} rounds, medians; "
        f"AUROC on {len(fresh)} fresh frames ({truth.mean():.0%} success): {exact:.4f}\n"
    )
    print(
        "| way | images/s | × eager (lowest–highest) | start s | one frame p50, p99 ms | AUROC − eager | largest Δp |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, way in ways.items():
        found = way(fresh) if name != "eager fp32" else expected
        pairs = ratios[name][1:] or ratios[name]
        gap = np.abs(probability_of(found) - probability_of(expected)).max()
        p50, p99 = np.percentile(latencies[name], [50, 99])
        print(
            f"| {name} | {BATCH / statistics.median(times[name]):.0f} "
            f"| {statistics.median(pairs):.2f} ({min(pairs):.2f}–{max(pairs):.2f}) | {begun.get(name, 0):.1f} "
            f"| {p50:.1f}, {p99:.1f} | {auroc(truth, found) - exact:+.5f} | {gap:.5f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
