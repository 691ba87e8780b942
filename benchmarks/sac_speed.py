"""Prints SAC beside Stable-Baselines3 on the same env, network and batch: updates per second, and what is learned.

Both: 8 environments, batches of 256, two critics and a policy of 128×128 ReLU (or `--width`), one update per
environment step after 1000 random ones, gamma 0.97, learning rate 3e-4, the dense reward. "Updates/s" counts updates of
critics, policy and temperature, with drawing of batches, without the simulation.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from sb3 import fresh, print_learning

NUM_ENVS, BATCH, STARTS, ROLLOUT = 8, 256, 1000, 5


def referee(task: str, steps: int, seed: int, threads: int, width: int) -> dict[str, Any]:
    """Our SAC through its workers."""
    import tempfile

    import torch
    from rich.console import Console

    from referee.config import load
    from referee.learn.trainer import Trainer

    torch.set_num_threads(1)
    lines = [
        f"env.train.task={task}", f"runner.seed={seed}", f"env.train.num_envs={NUM_ENVS}", "env.eval.num_envs=1",
        f"actor.num_threads={threads}",
        f"actor.global_batch_size={BATCH}", f"actor.model.hidden_dims=[{width},{width}]",
        f"algorithm.random_steps={STARTS}", f"algorithm.rollout_steps={ROLLOUT}",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        run = Trainer(load("panda_sac_mlp", lines).config, Path(folder))
        run.warm_start(Console(quiet=True))
        curve, seconds = [], 0.0
        while run.steps < steps:
            numbers = run.iterate()
            seconds += numbers["time/update"] if "train/updates" in numbers else 0.0
            curve.append([run.steps, numbers.get("env/success_at_end", float("nan"))])
        updates = numbers["train/updates"]
        run.close()
    return {"updates_per_second": updates / seconds, "curve": curve, "minutes": run.seconds / 60}


def stable_baselines3(task: str, steps: int, seed: int, threads: int, width: int) -> dict[str, Any]:
    """SB3's SAC on the same simulation, with VecNormalize, as ours normalises states."""
    import numpy as np
    import torch
    from stable_baselines3 import SAC
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import VecNormalize

    from referee.config import PandaEnvConfig
    from sb3 import adapt

    torch.set_num_threads(threads)
    adapter = adapt(PandaEnvConfig(task=task, num_envs=NUM_ENVS), seed)
    curve: list[list[float]] = []

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            if adapter.ends:
                curve.append([self.num_timesteps, float(np.mean(adapter.ends))])
                adapter.ends.clear()

    class Timed(SAC):
        seconds, updates = 0.0, 0

        def train(self, gradient_steps: int, batch_size: int = BATCH) -> None:
            start = time.perf_counter()
            super().train(gradient_steps, batch_size)
            Timed.seconds += time.perf_counter() - start
            Timed.updates += gradient_steps

    model = Timed(
        "MlpPolicy", VecNormalize(adapter, norm_reward=False), batch_size=BATCH, learning_starts=STARTS,
        train_freq=(ROLLOUT, "step"), gradient_steps=ROLLOUT * NUM_ENVS, gamma=0.97, learning_rate=3e-4,
        buffer_size=200_000, policy_kwargs={"net_arch": [width, width]}, seed=seed, device="cpu",
    )  # fmt: skip
    start = time.perf_counter()
    model.learn(steps, callback=Watch())
    return {
        "updates_per_second": Timed.updates / Timed.seconds,
        "curve": curve,
        "minutes": (time.perf_counter() - start) / 60,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="PushCube")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of updates")
    parser.add_argument("--width", type=int, default=128, help="of the hidden layers")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(args.threads))
    rows: dict[str, list[dict[str, Any]]] = {"Referee": [], "SB3": []}
    for seed in range(args.repeat):
        print(f"[{seed + 1}/{args.repeat}]", file=sys.stderr, flush=True)
        for name, function in (("Referee", referee), ("SB3", stable_baselines3)):
            rows[name].append(fresh(function, args.task, args.steps, seed, args.threads, args.width))
    ours = [run["updates_per_second"] for run in rows["Referee"]]
    print(f"SAC on {args.task}, {args.steps:,} steps, {args.width}×{args.width}, {args.threads} thread(s)\n")
    print("| | updates/s | min–max | Referee / it | minutes |\n|---|---:|---:|---:|---:|")
    for name, runs in rows.items():
        rates = [run["updates_per_second"] for run in runs]
        ratio = statistics.median(a / b for a, b in zip(ours, rates, strict=True))
        spent = statistics.median(run["minutes"] for run in runs)
        middle = statistics.median(rates)
        print(f"| {name} | {middle:,.0f} | {min(rates):,.0f}–{max(rates):,.0f} | {ratio:.2f} | {spent:.1f} |")
    print_learning({name: [run["curve"] for run in runs] for name, runs in rows.items()}, window=200)
    return 0


if __name__ == "__main__":
    sys.exit(main())
