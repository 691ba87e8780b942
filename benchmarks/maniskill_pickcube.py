"""Prints how ManiSkill's PickCube-v1 is learned on a CPU from demonstrations, with RLPD and a sparse reward.

1. `referee run maniskill_expert` records fifty episodes of the scripted expert, with a little noise in its actions;
   those that end in success are the demonstrations.
2. Preset `maniskill_rlpd_mlp`: a clone of them is judged; then RLPD learns, paid 1 where the cube is at its goal and 0
   everywhere else.
Judged on 256 fresh episodes with the mean action: success at the end (the cube at its goal, the robot still) and at any
time, with 95 % intervals. "Steps to 90 %" is the first evaluation of 64 fixed episodes, every 4000 steps, that
reaches it.
"""

import argparse
import logging
import sys
import time
from pathlib import Path

from referee import cpu

cpu.cap_if_needed()

import torch  # noqa: E402 - after the cap

from referee.cli import main as referee  # noqa: E402
from referee.config import load  # noqa: E402
from referee.demo.ablation_runs import QUIET, learn  # noqa: E402
from referee.learn.roll_out import roll_out  # noqa: E402
from referee.learn.trainer import Trainer  # noqa: E402
from referee.rl.policy import Player  # noqa: E402

DEMOS, NOISE, DEMO_SEED, FRESH_SEED, EPISODES = 50, 0.05, 800_000, 3_000_000, 256
ROW = "row.md"
HEAD = (
    "| seed | policy | success at the end of 256 [95 %] | at any time | steps to 90 % | evaluations, every 4000 steps "
    "| steps | minutes |"
)


def demonstrations(seed: int, folder: Path) -> Path:
    """Fifty episodes of the expert."""
    place = folder / f"demos_{seed}"
    if not place.exists():
        recording = {"enabled": "true", "save_dir": place, "cameras": "[]"}
        lines = [f"env.eval.data_collection.{name}={value}" for name, value in recording.items()]
        lines += [f"runner.num_episodes={DEMOS}", "env.eval.num_envs=25", f"runner.expert_noise={NOISE}"]
        lines += [f"runner.seed={DEMO_SEED + 1000 * seed}", f"runner.logger.log_path={folder / f'expert_{seed}'}"]
        if referee(["run", "maniskill_expert", *lines]):
            raise SystemExit("referee run maniskill_expert failed")
    return place


def judged(run: Trainer) -> str:
    """Success on fresh episodes, at the end and at any time, as cells of a table."""
    player = Player(run.policy, run.evaluation.env)
    found = roll_out(run.evaluation.env, player, EPISODES, seed=FRESH_SEED, observe=player.see)
    return f"{found.rate()} | {found.rate(once=True)}"


def row(seed: int, lines: list[str], folder: Path) -> None:
    """Clone, learn, and print both."""
    place = folder / f"rlpd_{seed}"
    if (place / ROW).exists():
        print((place / ROW).read_text(), flush=True)
        return
    demos = demonstrations(seed, folder)
    run = Trainer(
        load("maniskill_rlpd_mlp", [f"runner.seed={seed}", f"algorithm.demos.path={demos}", *lines]).config, place
    )
    run.warm_start(QUIET)
    text = f"| {seed} | clone | {judged(run)} | | | 0 | |\n"
    print(text, end="", flush=True)
    curve: list[tuple[int, float]] = []

    def tell(_: dict[str, float]) -> None:
        if run.evaluated_at == run.steps:
            curve.append((run.steps, run.evaluation["eval/success_at_end"]))
            print(f"  {run.steps:,} steps, {run.seconds / 60:.1f} minutes: {curve[-1][1]:.0%}", file=sys.stderr)

    start = time.perf_counter()
    learn(run, tell)
    minutes = (time.perf_counter() - start) / 60
    reached = [step for step, share in curve if share >= 0.9]
    text += (
        f"| {seed} | RLPD | {judged(run)} | {f'{reached[0]:,}' if reached else '–'} "
        f"| {' '.join(f'{100 * share:.0f}' for _, share in curve)} | {run.steps:,} | {minutes:.1f} |"
    )
    print(text.splitlines()[1], flush=True)
    (place / ROW).write_text(text)
    run.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=Path(".bench/maniskill_pickcube"), help="goes on with it")
    parser.add_argument("lines", nargs="*", help="further settings, as key=value")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    print(HEAD + "\n|--:|---|--:|--:|--:|---|--:|--:|", flush=True)
    for seed in args.seeds:
        row(seed, args.lines, args.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
