"""Prints what becomes of a weak policy under a learned reward: frozen, guarded, refined; beside the truth as a reward.

Per task: 200 episodes of the scripted expert with noise are recorded with two cameras of 64 px, and `referee train`
makes a reward model of them. Per seed: PPO with the dense reward, stopped when a look at 128 episodes finds 27 % true
success or more. From there, with the same budget:
  oracle   the truth pays, and nothing else.
  frozen   the reward model pays; each state by itself in per-step mode, without a gate over time.
  guards   what is called a success but is unlike the successes that the model knows is not paid (`veto_unknown`); in
           per-step mode also the gate that was calibrated. No label is asked for.
  mined    the model first learns that 256 frames of the policy's first steps are failures. No label either.
  jitter   the model was trained on episodes whose cameras jitter.
  refined  24 frames are asked about at twenty even times of the run, 480 in all; the truth answers, as a person would.
  both     refined, with the veto of `guards`.
Judged on 512 fresh episodes with the mean action and with the noise of exploration. "Gap" is what the model says above
the truth in the last 512 training episodes, with its 95 % interval (of states in per-step mode, which are not
independent, so there it is too narrow); "largest" the largest of such means after the first third, either way.
"""

import argparse
import contextlib
import io
import json
import logging
import sys
import time
from pathlib import Path

import numpy as np

from referee import cpu

cpu.cap_if_needed()

from referee.cli import main as referee  # noqa: E402 - after the cap
from referee.demo.ablation_runs import (  # noqa: E402
    QUIET,
    Course,
    arm_config,
    judge,
    learn,
    record_experts,
    scratch_config,
    weak_config,
    weak_policy,
)
from referee.learn.trainer import Trainer  # noqa: E402
from referee.metrics.intervals import Estimate  # noqa: E402
from referee.runs.logbook import METRICS  # noqa: E402
from referee.sim.scene import CONTROL_HZ  # noqa: E402

RECORDED, DATA_SEED, FRESH_SEED, EPISODES = 200, 700_000, 3_000_000, 512
POOR = 60
"""Episodes of the model that pays a policy which begins with nothing."""
JITTER = 0.3
POOLED = 8
"""Iterations of 64 episodes over which a gap is taken."""
ROW = "row.md"
OPEN = 0.20
"""A gap from which a run counts as hacked."""
ARMS = {
    "oracle": ["reward.reward_weight=0", "reward.gt_success_bonus=1"],
    "frozen": [],
    "guards": ["reward.veto_unknown=true"],
    "mined": ["reward.refine.enabled=true", "reward.refine.budget=0", "reward.refine.mine=256"],
    "jitter": [],
    "refined": ["reward.refine.enabled=true"],
    "both": ["reward.refine.enabled=true", "reward.veto_unknown=true"],
}
USUAL = ["oracle", "frozen", "guards", "refined", "both"]
HEAD = (
    "| task | seed | mode | arm | end: true success | with noise | gap, points | largest | true success while learning "
    "| model's | alarm at | labels | swaps | s per round | minutes |"
)
SCRATCH_HEAD = (
    "| task | seed | end: true success | true of states while learning | model's | largest gap | gap above 20 at "
    "| alarm at | its reason at the end | minutes |"
)


def reward_model(task: str, folder: Path, jitter: float = 0.0, recorded: int = RECORDED) -> Path:
    """The artifact that `referee train` makes."""
    name = f"{task}_reward" + ("_jitter" if jitter else "") + ("" if recorded == RECORDED else f"_{recorded}")
    if not (folder / name).exists():
        store = record_experts(task, recorded, folder / f"{name}_episodes", seed=DATA_SEED, camera=jitter)
        start = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            code = referee(["train", str(store.root), "--out", str(folder / name)])
        if code:
            raise SystemExit(f"referee train {store.root} failed")
        print(f"{name}: {len(store)} episodes, {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return folder / name / "checkpoints" / "best_model"


def start_of(task: str, seed: int, folder: Path, threads: list[str]) -> Path:
    """The checkpoint of a weak policy."""
    place = folder / f"{task}_{seed}_start"
    if not place.exists():
        run = weak_policy(weak_config(task, seed, *threads), place)
        found = judge(run, EPISODES, seed=FRESH_SEED), judge(run, EPISODES, seed=FRESH_SEED, noise=True)
        run.close()
        (place / "start.json").write_text(json.dumps({"steps": run.steps, "found": [str(each) for each in found]}))
    known = json.loads((place / "start.json").read_text())
    print(f"| {task} | {seed} | | start | {known['found'][0]} | {known['found'][1]} | | | | | | | | | |", flush=True)
    return place


def row(task: str, seed: int, mode: str, arm: str, config: list[str], start: Path, model: Path, folder: Path) -> None:
    """Train one arm, and print it."""
    place = folder / f"{task}_{seed}_{mode}_{arm}"
    if (place / ROW).exists():
        print((place / ROW).read_text(), flush=True)
        return
    ungated = ["reward.gate_k=1", "reward.gate_n=1"] if arm != "guards" and mode == "per_step" else []
    lines = [*ARMS[arm], *ungated, f"reward.reward_mode={mode}", *config]
    run = Trainer(arm_config(task, seed, start, model, *lines), place)
    run.warm_start(QUIET)
    course = learn(run, lambda numbers: note(run, numbers))
    ends = judge(run, EPISODES, seed=FRESH_SEED), judge(run, EPISODES, seed=FRESH_SEED, noise=True)
    assert run.refinement is not None
    alarm, refiner = run.alarm, run.refinement.refiner
    account = {} if refiner is None else refiner.account(run.steps / CONTROL_HZ)
    rounds = [] if refiner is None else [sum(each.seconds.values()) for each in refiner.rounds if each.compared]
    text = (
        f"| {task} | {seed} | {mode} | {arm} | {ends[0]} | {ends[1]} | {points(course.gap(POOLED))} "
        f"| {100 * largest(course):+.1f} | {curve(course.true)} | {curve(course.model)} "
        f"| {'–' if alarm is None or alarm.first_at is None else f'{alarm.first_at:,}'} | {account.get('labels', 0)} "
        f"| {len(run.refinement.swaps)} | {f'{np.median(rounds):.0f} ({max(rounds):.0f})' if rounds else '–'} "
        f"| {run.seconds / 60:.1f} |"
    )
    print(text, flush=True)
    (place / ROW).write_text(text)
    run.close()


def note(run: Trainer, numbers: dict[str, float]) -> None:
    """Keep the numbers of an iteration, so that a course can be looked at again."""
    run.folder.mkdir(parents=True, exist_ok=True)
    with (run.folder / METRICS).open("a") as lines:
        lines.write(json.dumps({"step": run.steps, **numbers}) + "\n")


def scratch(task: str, seed: int, steps: int, threads: list[str], model: Path, folder: Path) -> None:
    """Train from nothing, paid for every state, and print when the gap opened and when the alarm was raised."""
    place = folder / f"{task}_{seed}_scratch"
    if (place / ROW).exists():
        print((place / ROW).read_text(), flush=True)
        return
    run = Trainer(scratch_config(task, seed, model, f"runner.max_steps={steps}", *threads), place)
    run.warm_start(QUIET)
    course = learn(run, lambda numbers: note(run, numbers))
    end = judge(run, EPISODES, seed=FRESH_SEED)
    assert run.alarm is not None
    gap = np.subtract(course.model, course.true)
    opened = [step for step, each in zip(course.steps, gap, strict=True) if each > OPEN]
    text = (
        f"| {task} | {seed} | {end} | {curve(course.true)} | {curve(course.model)} | {100 * np.nanmax(gap):+.1f} "
        f"| {f'{opened[0]:,}' if opened else '–'} | {'–' if run.alarm.first_at is None else f'{run.alarm.first_at:,}'} "
        f"| {run.alarm.reason()} | {run.seconds / 60:.1f} |"
    )
    print(text, flush=True)
    (place / ROW).write_text(text)
    run.close()


def points(gap: Estimate) -> str:
    """A gap with its interval."""
    return f"{100 * gap.value:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"


def largest(course: Course) -> float:
    """The largest gap after the first third, over as many episodes as the last one."""
    gap = np.subtract(course.model, course.true)[len(course.steps) // 3 :]
    means = np.convolve(gap, np.full(POOLED, 1 / POOLED), "valid")
    return float(means[np.argmax(np.abs(means))])


def curve(values: list[float], points: int = 8) -> str:
    """Means of equal parts of a run."""
    return " ".join(f"{100 * np.nanmean(part):.0f}" for part in np.array_split(values, points))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["PickCube", "PushCube", "PegInsertion"])
    parser.add_argument("--seeds", type=int, nargs="+", help="default: 0 1 2, for PegInsertion 0")
    parser.add_argument("--modes", nargs="+", help="default: both for PickCube, terminal for the others")
    parser.add_argument("--arms", nargs="+", default=USUAL, choices=list(ARMS))
    parser.add_argument("--steps", type=int, default=320_000, help="of each arm; in per-step mode, 0.4 of it")
    parser.add_argument("--scratch", action="store_true", help="instead: policies that begin with nothing, per step")
    parser.add_argument("--threads", type=int, default=0, help="of updates and retraining (default: all cores)")
    parser.add_argument("--folder", type=Path, default=Path(".bench/refinement"), help="goes on with what is there")
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # episodes of noisy actors flicker, and are meant to
    threads = [f"actor.num_threads={args.threads}"]
    if args.scratch:
        print(SCRATCH_HEAD + "\n" + "|---|--:|--:|--:|--:|--:|--:|--:|---|--:|", flush=True)
        for task in args.tasks:
            for seed in args.seeds or [0, 1, 2]:
                model = reward_model(task, args.folder, recorded=POOR)
                scratch(task, seed, int(0.8 * args.steps), threads, model, args.folder)
        return 0
    print(HEAD + "\n" + "|---|--:|---|---|" + "--:|" * 11, flush=True)
    for task in args.tasks:
        for seed in args.seeds or ([0] if task == "PegInsertion" else [0, 1, 2]):
            start = start_of(task, seed, args.folder, threads)
            for mode in args.modes or (["terminal", "per_step"] if task == "PickCube" else ["terminal"]):
                steps = args.steps if mode == "terminal" else int(0.4 * args.steps)
                lines = [f"runner.max_steps={steps}", f"reward.refine.interval={max(1, steps // 64_000)}", *threads]
                for arm in args.arms:
                    model = reward_model(task, args.folder, JITTER if arm == "jitter" else 0.0)
                    row(task, seed, mode, arm, lines, start, model, args.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
