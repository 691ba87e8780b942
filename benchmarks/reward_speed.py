"""Prints what a learned reward costs a policy's training: iterations with and without it, in turns, in one process.

Terminal: PPO with the reward model against PPO without it. Per step: PPO with every state drawn and judged, against PPO
with every state drawn and not judged.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

from referee import cpu

cpu.cap_if_needed()

from referee.config import load  # noqa: E402 - after the cap
from referee.learn.trainer import Trainer  # noqa: E402
from referee.models import Artifact, Calibration, ModelSpec, Reference, build  # noqa: E402
from referee.models.artifact import embed  # noqa: E402
from referee.models.contract import RewardModel  # noqa: E402


class Drawing(Trainer):
    """Draws what a model would look at, and does not look."""

    def iterate(self) -> dict[str, float]:
        step = self.env.step

        def drawn(actions: np.ndarray) -> object:
            result = step(actions)
            self.env.render_cameras()
            if (result[2] | result[3]).any():
                self.env.render_cameras(np.flatnonzero(result[2] | result[3]), final=True)
            return result

        self.env.step = drawn  # type: ignore[method-assign,assignment]
        try:
            return super().iterate()
        finally:
            self.env.step = step  # type: ignore[method-assign]


def _reference(net: RewardModel, frames: np.ndarray) -> Reference:
    features, wins = embed(net, frames), np.arange(len(frames)) % 2 == 1
    return Reference.of(features, frames, successes=wins).calibrated(features, successes=wins)


def model_in(folder: Path) -> Path:
    """The model that `referee train` makes, untrained: its speed does not depend on its weights."""
    torch.manual_seed(0)
    net = build(ModelSpec(arch="resnet10", width=16, image_size=64, cameras=("front", "side"))).eval()
    frames = np.random.default_rng(0).integers(0, 255, (64, 2, 64, 64, 3)).astype(np.uint8)
    Artifact(net, Calibration(), reference=_reference(net, frames)).save(folder / "model")
    return folder / "model"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--artifact", type=Path, help="a trained model (default: an untrained one of the usual size)")
    parser.add_argument("--backend", default="auto")
    args = parser.parse_args()
    rates: dict[str, list[float]] = defaultdict(list)
    spent: dict[str, list[float]] = defaultdict(list)
    per_step = "reward.reward_mode=per_step"
    with tempfile.TemporaryDirectory() as folder:
        path = args.artifact or model_in(Path(folder))
        learned = [
            "reward.use_reward_model=true",
            f"reward.model.model_path={path}",
            f"reward.model.backend={args.backend}",
        ]
        plain = load("panda_ppo_mlp").config
        pairs = [
            ("PPO, environment's reward", Trainer, plain),
            ("PPO, terminal reward model", Trainer, load("panda_ppo_mlp", learned).config),
            ("PPO, every state drawn", Drawing, plain),
            ("PPO, per-step reward model", Trainer, load("panda_ppo_mlp", [*learned, per_step]).config),
        ]
        for pair in (pairs[:2], pairs[2:]):
            runs = [(name, kind(config)) for name, kind, config in pair]
            for _, run in runs:
                run.iterate()
            for _ in range(args.repeat):
                for name, run in runs:
                    start = time.perf_counter()
                    numbers = run.iterate()
                    rates[name].append(run.rollout.steps * run.rollout.num_envs / (time.perf_counter() - start))
                    spent[name].append(numbers.get("time/compute_model_rewards", float("nan")))
            for _, run in runs:
                run.close()
    print(f"PickCube, 64 envs, two 64 px cameras, {args.backend}; medians of {args.repeat} iterations in turns\n")
    print("| | steps/s | share | of | ms of scoring per step of all envs |")
    print("|---|---:|---:|---|---:|")
    beside = {
        "PPO, terminal reward model": "PPO, environment's reward",
        "PPO, per-step reward model": "PPO, every state drawn",
    }
    for name in rates:
        other = beside.get(name)
        share = statistics.median(a / b for a, b in zip(rates[name], rates[other], strict=True)) if other else None
        words = f"{share:.2f} | {other}" if share is not None else " | "
        scoring = f"{1e3 * statistics.median(spent[name]):.1f}" if other else ""
        print(f"| {name} | {statistics.median(rates[name]):,.0f} | {words} | {scoring} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
