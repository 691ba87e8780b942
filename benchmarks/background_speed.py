"""Prints what acting, judging and learning side by side brings: waiting, staleness, and speed beside one process.

SAC on PickCube, 8 environments, one thread each, paid by a reward model at the end of episodes or for every state. In
one process, each iteration collects, judges and learns in turn, with one update per step. Side by side, environments
run at an arm's 20 Hz, or as fast as they can, and the learner does what it can in the meantime.
"""

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from referee import cpu

cpu.cap_if_needed()

import torch  # noqa: E402 - after the cap

from referee.config import load  # noqa: E402
from referee.demo.ablation_runs import QUIET  # noqa: E402
from referee.learn.trainer import Trainer  # noqa: E402

HEAD = (
    "| reward | | steps/s | updates/s | env waits | lag, s: median | 99 % | largest | updates ahead: median | 99 % "
    "| largest |"
)
WARM = 20
"""Iterations that are not counted: processes start, and the first random steps are made."""


def measure(name: str, lines: list[str], seconds: float) -> None:
    """Run for so long, and print a row."""
    common = ["actor.num_threads=1", "env.train.num_threads=1", "algorithm.random_steps=200", "env.eval.num_envs=1"]
    config = load("panda_sac_mlp", [*common, *lines]).config
    with tempfile.TemporaryDirectory() as folder:
        together = config.runner.background.enabled
        run = Trainer(config, Path(folder))
        run.warm_start(QUIET)
        try:
            for _ in range(WARM):
                run.iterate()
            start, steps, updates = time.perf_counter(), run.steps, run.learner.updates  # type: ignore[union-attr]
            rows = []
            while time.perf_counter() - start < seconds:
                rows.append(run.iterate())
            spent = time.perf_counter() - start
            speeds = (run.steps - steps) / spent, (run.learner.updates - updates) / spent  # type: ignore[union-attr]
        finally:
            run.close()
    if together:
        waits = f"{100 * np.mean([row['async/env_wait'] for row in rows]):.1f} %"
        lag = [row["async/lag_seconds_max"] for row in rows]
        ahead = [row["async/policy_lag_max"] for row in rows]
        cells = [f"{value:.2f}" for value in (*np.quantile(lag, [0.5, 0.99]), max(lag))]
        cells += [f"{value:.0f}" for value in (*np.quantile(ahead, [0.5, 0.99]), max(ahead))]
    else:
        waits, cells = "–", ["–"] * 6
    print(f"| {name} | {speeds[0]:,.0f} | {speeds[1]:,.0f} | {waits} | {' | '.join(cells)} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="artifact that pays")
    parser.add_argument("--seconds", type=float, default=60)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    print(HEAD + "\n|---|---|" + "--:|" * 9, flush=True)
    for mode in ("terminal", "per_step"):
        paid = ["reward.use_reward_model=true", f"reward.model.model_path={args.model}", f"reward.reward_mode={mode}"]
        measure(f"{mode} | one process", paid, args.seconds)
        beside = [*paid, "runner.background.enabled=true"]
        measure(f"{mode} | side by side, 20 Hz", [*beside, "runner.background.pace=20"], args.seconds)
        measure(f"{mode} | side by side, no pace", beside, args.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
