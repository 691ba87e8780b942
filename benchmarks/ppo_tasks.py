"""Prints how far PPO gets from scratch with the dense reward: success, steps and minutes to 90 %, over seeds."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from referee.metrics import Rate
from referee.recipes.trained import judge

FRESH_SEED = 2_000_000
"""Of episodes that no run was stopped or chosen by."""


def train(task: str, seed: int, minutes: float, preset: str, extra: list[str]) -> tuple[list[dict[str, float]], Rate]:
    """One training run in a process of its own: its rows with an evaluation, and its last policy on fresh episodes."""
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            f"env.train.task={task}",
            f"runner.seed={seed}",
            f"runner.max_minutes={minutes}",
            "runner.max_steps=100000000",
            "runner.film=false",
            f"runner.logger.log_path={folder}",
            *extra,
        ]
        command = [sys.executable, "-m", "referee.cli", "run", preset, *overrides]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
        rate = judge(Path(folder), 256, seed=FRESH_SEED).rate()
    return [row for row in rows if "eval/success_at_end" in row], rate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", default="PickCube:5,PushCube:5,PegInsertion:15", help="task:minutes, …")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--preset", default="panda_ppo_mlp")
    parser.add_argument("--target", type=float, default=0.98, help="stop a run at this success")
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    print(f"Deterministic policy. A run stops at {args.target:.0%} of its 256 evaluation episodes, and its last policy")
    print("is then judged on 256 others: success at the end, 95 % Wilson interval.\n")
    print("| task | seed | steps to 90 % | minutes to 90 % | on fresh episodes | steps | minutes, all in |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for entry in args.tasks.split(","):
        task, minutes = entry.split(":")
        for seed in range(args.seeds):
            start = time.monotonic()
            extra = [f"runner.target_success={args.target}", *args.overrides]
            rows, rate = train(task, seed, float(minutes), args.preset, extra)
            wall = (time.monotonic() - start) / 60
            first = next((row for row in rows if row["eval/success_at_end"] >= 0.9), None)
            to = (f"{first['step']:,}", f"{first['time/minutes']:.1f}") if first else ("never", "never")
            print(f"| {task} | {seed} | {to[0]} | {to[1]} | {rate} | {rows[-1]['step']:,} | {wall:.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
