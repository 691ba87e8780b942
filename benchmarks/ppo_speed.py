"""Prints PPO steps per second, end to end, beside Stable-Baselines3 on the same env, network, batch and epochs."""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from sb3 import fresh, print_learning

NUM_ENVS, STEPS, BATCH, EPOCHS = 64, 50, 800, 8
SETTINGS = {"gamma": 0.97, "gae_lambda": 0.95, "learning_rate": 3e-4}


def referee(task: str, iterations: int, seed: int) -> dict[str, Any]:
    """Our PPO through its workers; the first iteration warms up and is not counted."""
    import tempfile

    import torch
    from rich.console import Console

    from referee.config import load
    from referee.learn.trainer import Trainer

    torch.set_num_threads(1)
    loaded = load("panda_ppo_mlp", [f"env.train.task={task}", f"runner.seed={seed}", f"env.train.num_envs={NUM_ENVS}"])
    with tempfile.TemporaryDirectory() as folder:
        run = Trainer(loaded.config, Path(folder))
        run.warm_start(Console(quiet=True))
        curve = []
        run.iterate()
        start = time.perf_counter()
        for _ in range(iterations):
            numbers = run.iterate()
            curve.append([run.steps, numbers.get("env/success_at_end", float("nan"))])
        seconds = time.perf_counter() - start
        run.close()
    return {"steps_per_second": iterations * NUM_ENVS * STEPS / seconds, "curve": curve}


def stable_baselines3(task: str, iterations: int, seed: int, threads: int) -> dict[str, Any]:
    """SB3's PPO on the same simulation through its own VecEnv interface and VecNormalize."""
    import numpy as np
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import VecNormalize

    from referee.config import PandaEnvConfig
    from sb3 import adapt

    torch.set_num_threads(threads)

    class Clock(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.start, self.rollouts, self.curve = 0.0, 0, []

        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            if self.rollouts == 1:
                self.start = time.perf_counter()
            if adapter.ends:
                self.curve.append([self.num_timesteps, float(np.mean(adapter.ends))])
                adapter.ends.clear()
            self.rollouts += 1

        def _on_training_end(self) -> None:
            self.seconds = time.perf_counter() - self.start

    adapter, clock = adapt(PandaEnvConfig(task=task, num_envs=NUM_ENVS), seed), Clock()
    model = PPO(
        "MlpPolicy",
        VecNormalize(adapter, norm_reward=False),
        n_steps=STEPS,
        batch_size=BATCH,
        n_epochs=EPOCHS,
        policy_kwargs={"net_arch": [128, 128], "log_std_init": -0.5},
        seed=seed,
        device="cpu",
        **SETTINGS,
    )
    model.learn((iterations + 1) * NUM_ENVS * STEPS, callback=clock)
    return {"steps_per_second": iterations * NUM_ENVS * STEPS / clock.seconds, "curve": clock.curve}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="PickCube")
    parser.add_argument("--iterations", type=int, help="timed iterations of 3200 steps (30; 160 with --learning)")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--learning", action="store_true", help="compare success against steps too")
    args = parser.parse_args()
    args.iterations = args.iterations or (160 if args.learning else 30)
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
    rows: dict[str, list[dict[str, Any]]] = {"Referee": []}
    for seed in range(args.repeat):
        print(f"[{seed + 1}/{args.repeat}]", file=sys.stderr, flush=True)
        rows["Referee"].append(fresh(referee, args.task, args.iterations, seed))
        for threads in (1,) if args.learning else (1, 2):
            name = f"SB3, {threads} thread{'s' if threads > 1 else ''}"
            rows.setdefault(name, []).append(fresh(stable_baselines3, args.task, args.iterations, seed, threads))
    ours = [run["steps_per_second"] for run in rows["Referee"]]
    print(
        f"PPO on {args.task}: {NUM_ENVS} envs × {STEPS} steps, minibatches of {BATCH}, {EPOCHS} epochs, 128×128 tanh\n"
    )
    print("| | steps/s, end to end | min–max | Referee / it |\n|---|---:|---:|---:|")
    for name, runs in rows.items():
        rates = [run["steps_per_second"] for run in runs]
        ratio = statistics.median(a / b for a, b in zip(ours, rates, strict=True))
        print(f"| {name} | {statistics.median(rates):,.0f} | {min(rates):,.0f}–{max(rates):,.0f} | {ratio:.2f} |")
    if args.learning:
        print_learning({name: [run["curve"] for run in runs] for name, runs in rows.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
