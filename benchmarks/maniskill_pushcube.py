"""Prints how ManiSkill's PushCube-v1 is learned from a learned reward on a CPU: collect, train, audit, refine.

collect  `referee run maniskill_expert` records 200 episodes of the scripted expert with one camera of 64 px (unlit,
         light scene); noise from 0.1 to 0.6 of a full action makes it stumble, so that many of them fail.
train    `referee dataset frames` and `referee run reward_training` make a reward model of them.
audit    `referee audit` says how far to trust it, on 100 other episodes.
clone    a weak policy to begin with: it has copied a few episodes of the expert.
start    the weak policy, judged as it is.
learned  the weak policy learns on, paid by the model's verdict on the last state of each episode and by nothing else;
         24 frames are asked about every ten iterations, 240 in all, and the truth answers, as a person would.
oracle   the weak policy learns on, paid by the truth about the last state of each episode and by nothing else.
Both learn in episodes of 30 steps. All three are judged on 256 fresh episodes of 50 steps with the mean action: true
success at any time and at the end, and what the model says of the ends. A folder is gone on with, stage by stage.
"""

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path

from referee import cpu

cpu.cap_if_needed()

import torch  # noqa: E402 - after the cap

from referee.cli import main as referee  # noqa: E402
from referee.config import Config, load  # noqa: E402
from referee.episodes import EpisodeStore  # noqa: E402
from referee.rl.policy import Player  # noqa: E402
from referee.runners.arms import QUIET  # noqa: E402
from referee.runners.rollout import SecondOpinion, roll_out  # noqa: E402
from referee.runners.training import Training  # noqa: E402

NOISES = (0.1, 0.2, 0.3, 0.4, 0.6)
EACH, DATA_SEED, FRESH_EACH, FRESH_DATA_SEED = 40, 700_000, 20, 750_000
MODEL = "reward/checkpoints/best_model"
CLONED, FRESH_SEED, FRESH = 10, 3_000_000, 256
LABELS, ASK, ROUND = 240, 24, 10
"""Frames that are asked about in all, in one round, and iterations between rounds."""
ENVS, LENGTH, EVALUATED = 32, 30, 15
"""Environments and steps of a rollout, each of which is one episode; iterations between evaluations."""
WORLD = [
    "task=PushCube-v1", "control_mode=pd_ee_delta_pos", "cameras=[front]", "image_size=64", "shader=unlit",
    "light_scene=true",
]  # fmt: skip
COMMON = [
    *(f"env.{name}.{line}" for name in ("train", "eval") for line in WORLD),
    f"env.train.num_envs={ENVS}", f"env.train.max_episode_steps={LENGTH}", f"algorithm.rollout_steps={LENGTH}",
    "env.eval.num_envs=16", "env.eval.max_episode_steps=50",
    "actor.global_batch_size=120", "actor.model.hidden_dims=[256,256]", "runner.eval_episodes=64",
]  # fmt: skip
CLONING = [f"algorithm.bc_warmup.{line}" for line in (f"episodes={CLONED}", "noise=0.1", "epochs=100")]


def record(place: Path, each: int, seed: int) -> str:
    """Episodes of the expert, from one that hardly stumbles to one that seldom arrives; the same number of each."""
    for i, noise in enumerate(NOISES):
        must(
            "run", "maniskill_expert", *(f"env.eval.{line}" for line in WORLD), f"runner.expert_noise={noise}",
            f"runner.num_episodes={each}", "env.eval.num_envs=20", f"runner.seed={seed + 1000 * i}",
            "env.eval.data_collection.enabled=true", f"env.eval.data_collection.save_dir={place}",
            f"runner.logger.log_path={place}_{noise}",
        )  # fmt: skip
    rows = EpisodeStore(place).rows.values()
    reached = sum(bool(row.success_once) for row in rows)
    return f"{len(rows)} episodes, {sum(row.steps for row in rows):,} steps; {reached} of them with a success"


def train(folder: Path) -> str:
    """Frames out of the episodes, and a reward model out of these."""
    must("dataset", "frames", "--raw-data-path", folder / "episodes", "--output-dir", folder / "frames")
    must("run", "reward_training", f"data.data_path={folder / 'frames'}", f"runner.logger.log_path={folder / 'reward'}")
    return "a ResNet10 of 64 px"


def audit(folder: Path) -> str:
    """The report card, on episodes that nobody has learned from."""
    fresh = record(folder / "fresh", FRESH_EACH, FRESH_DATA_SEED)
    must("audit", folder / MODEL, folder / "fresh", "--out", folder / "audit")
    found = json.loads((folder / "audit/metrics.json").read_text())
    counts, auroc = found["counts"], found["estimates"]["auroc"]["value"]
    return (
        f"on {fresh}; frame AUROC {auroc:.3f}, paid {counts['paid']} of {counts['failing_episodes']} failing episodes, "
        f"detected {counts['detected']} of {counts['success_episodes']} successes"
    )


def clone(folder: Path, seed: int) -> str:
    """The weak policy, as a run of no steps."""
    run = Training(load("maniskill_ppo_mlp", [*COMMON, *CLONING, f"runner.seed={seed}"]).config, folder)
    run.warm_start(QUIET)
    run.save()
    run.close()
    return f"{CLONED} episodes"


def arm_config(name: str, steps: int, seed: int, folder: Path, lines: list[str]) -> Config:
    """How an arm goes on from the weak policy."""
    own = {
        "start": [],
        "oracle": ["reward.reward_weight=0", "reward.gt_success_bonus=1"],
        "learned": [
            "reward.refine.enabled=true", f"reward.refine.budget={LABELS}", f"reward.refine.ask={ASK}",
            f"reward.refine.interval={ROUND}",
        ],
    }  # fmt: skip
    common = [
        *COMMON, f"runner.seed={seed}", f"runner.max_steps={steps}", f"actor.model.model_path={folder / 'clone'}",
        f"reward.model.model_path={folder / MODEL}", "actor.model.start_log_std=-2.0",
    ]  # fmt: skip
    return load("maniskill_ppo_mlp_resnet_reward", [*common, *own[name], *lines]).config


def arm(config: Config, folder: Path, *, learns: bool) -> str:
    """Learn on to the end of the steps, and judge what came of it."""
    run = Training(config, folder)
    if any(folder.glob("checkpoints/step_*")):
        run.resume(folder)
    else:
        run.warm_start(QUIET)
    while learns and not run.finished():
        numbers = run.iterate()
        if run.iteration % EVALUATED == 0:
            found = run.evaluate()
            run.save()
            print(
                f"  {folder.name}, {run.steps:,} steps, {run.seconds / 60:.1f} minutes: of 64 ends, true "
                f"{found['eval/success_at_end']:.0%}, model {found['eval/reward/model_success']:.0%}; "
                f"in training, true {numbers['reward/true_success']:.0%}, model {numbers['reward/model_success']:.0%}",
                file=sys.stderr, flush=True,
            )  # fmt: skip
    if learns:
        run.save()
    text = judged(run)
    if run.verdicts is not None and (refiner := run.verdicts.refiner) is not None:
        text += f"; {refiner.account(0.0)['labels']:.0f} labels, {len(run.verdicts.swaps)} better models took over"
    run.close()
    return f"{run.steps:,} steps in {run.seconds / 60:.1f} minutes; {text}" if learns else text


def judged(run: Training) -> str:
    """True success at any time and at the end of fresh episodes, and what the model says of the ends."""
    assert run.verdicts is not None
    player = Player(run.policy, run.eval_env)
    second = SecondOpinion(run.verdicts.manager, run.verdicts.reward.cameras)
    found = roll_out(run.eval_env, player, FRESH, seed=FRESH_SEED, observe=player.see, watch=second)
    said = second.truth.log("x")["x/model_success"]
    return (
        f"true success at any time {found.rate(once=True)}, at the end {found.rate()}; "
        f"the model says {said:.1%} of the ends, gap {100 * (said - found.rate().share):+.1f} points"
    )


def must(*words: str | Path) -> None:
    """Run a command of ours, or end."""
    if referee([str(word) for word in words]):
        raise SystemExit(f"referee {words[0]} failed")


def stage(name: str, folder: Path, work: Callable[[], str]) -> None:
    """Do it unless it is done, and print its row."""
    note = folder / f"{name}.json"
    if not note.exists():
        start = time.perf_counter()
        found = work()
        note.write_text(json.dumps({"minutes": (time.perf_counter() - start) / 60, "found": found}))
    known = json.loads(note.read_text())
    print(f"| {name} | {known['minutes']:.1f} | {known['found']} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", nargs="*", help="further settings of the arms, as key=value")
    parser.add_argument("--folder", type=Path, default=Path(".bench/maniskill_pushcube"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=192_000, help="of each arm (default 192,000)")
    parser.add_argument("--arms", nargs="+", default=["start", "learned", "oracle"])
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    folder: Path = args.folder
    folder.mkdir(parents=True, exist_ok=True)
    print("| stage | minutes | what |\n|---|--:|---|", flush=True)
    stage("collect", folder, lambda: record(folder / "episodes", EACH, DATA_SEED))
    stage("train", folder, lambda: train(folder))
    stage("audit", folder, lambda: audit(folder))
    stage("clone", folder, lambda: clone(folder / "clone", args.seed))
    for name in args.arms:
        config = arm_config(name, args.steps, args.seed, folder, args.lines)
        stage(name, folder, lambda config=config, name=name: arm(config, folder / name, learns=name != "start"))  # type: ignore[misc]
    return 0


if __name__ == "__main__":
    sys.exit(main())
