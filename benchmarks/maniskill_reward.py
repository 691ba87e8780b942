"""Prints how a task of ManiSkill is learned from a learned image reward on a CPU: collect, train, audit, refine.

collect  `referee run maniskill_expert` records episodes of the scripted expert; noise makes it stumble, and every
         second episode of PickCube-v1 aims beside its goal.
train    `referee train` makes a reward model of them.
audit    `referee audit` says how far to trust it, on other episodes.
clone    a weak policy to begin with: it has copied a few episodes of the expert.
start    the weak policy as it is.
oracle   PPO from the weak policy; the reward is ground truth about the last state of each episode, and nothing else.
frozen   PPO from the weak policy; the reward is the model's verdict on that state, and nothing else.
refined  the same; besides, frames are asked about at even times of the run, ground truth answers as a person would, and
         the model is retrained on the answers.
All are evaluated on 256 fresh episodes with the mean action: ManiSkill's own success (PickCube-v1: the cube is at its
goal and the robot stands still) at any time and at the end, and the model's verdicts on the last states. A folder is
gone on with, stage by stage.
"""

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from referee import cpu

cpu.cap_if_needed()

import torch  # noqa: E402 - after the cap

from referee.cli import main as referee  # noqa: E402
from referee.config import Config, load  # noqa: E402
from referee.demo.ablation_runs import QUIET  # noqa: E402
from referee.episodes import EpisodeStore  # noqa: E402
from referee.learn.roll_out import EvalScorer, roll_out  # noqa: E402
from referee.learn.trainer import Trainer  # noqa: E402
from referee.rl.policy import Player  # noqa: E402

MODEL = "reward/checkpoints/best_model"
DATA_SEED, AUDIT_SEED, FRESH_SEED, FRESH = 700_000, 750_000, 3_000_000, 256
ENVS, EVALUATED = 32, 15
"""Environments, and iterations between evaluations."""
ARMS = {
    "start": [],
    "oracle": ["reward.reward_weight=0", "reward.gt_success_bonus=1"],
    "frozen": [],
    "refined": ["reward.refine.enabled=true"],
}


@dataclass(frozen=True)
class Task:
    """What differs from task to task."""

    world: list[str]
    noises: tuple[float, ...]
    """Of the expert, in actions; the same number of episodes of each."""
    episodes: int
    audited: int
    """Episodes of the audit."""
    length: int
    """Steps of a training episode."""
    steps: int
    cloned: int
    """Episodes of the expert."""
    labels: int
    rollout: int
    """Steps of each environment per iteration."""
    minibatches: int = 8
    clone_noise: float = 0.1
    """Of the expert that is cloned."""
    miss: float = 0.0
    """Metres by which every second recorded episode aims beside its goal, at most."""
    learning: tuple[str, ...] = ()


CHEAP = ["control_mode=pd_ee_delta_pos", "shader=unlit", "light_scene=true"]
TASKS = {
    "PushCube-v1": Task(
        [*CHEAP, "cameras=[front]", "image_size=64"],
        noises=(0.1, 0.2, 0.3, 0.4, 0.6), episodes=200, audited=100, length=30, steps=192_000, cloned=10, labels=240,
        rollout=30,
        learning=("algorithm.target_kl=0", "algorithm.freeze_normaliser=false", "actor.model.start_log_std=-2.0"),
    ),
    "PickCube-v1": Task(
        [*CHEAP, "cameras=[front,side]", "image_size=64", "action_scale=0.3"],
        noises=(0.2, 0.4, 0.8, 1.2, 1.6), episodes=400, audited=150, length=50, steps=1_280_000, cloned=40, labels=480,
        rollout=200, minibatches=4, clone_noise=0.2, miss=0.08,
        learning=("actor.model.start_log_std=-1.5", "algorithm.update_epochs=4", "algorithm.critic_warmup=5"),
    ),
}  # fmt: skip


def world(name: str) -> list[str]:
    """Settings of an environment of the task."""
    return [f"task={name}", *TASKS[name].world]


def common(name: str) -> list[str]:
    """Settings of everything that learns a policy."""
    task = TASKS[name]
    return [
        *(f"env.{part}.{line}" for part in ("train", "eval") for line in world(name)),
        f"env.train.num_envs={ENVS}", f"env.train.max_episode_steps={task.length}",
        f"algorithm.rollout_steps={task.rollout}", "env.eval.num_envs=32", "env.eval.max_episode_steps=50",
        f"actor.global_batch_size={ENVS * task.rollout // task.minibatches}",
        "actor.model.hidden_dims=[256,256]", "runner.eval_episodes=64",
    ]  # fmt: skip


def record(name: str, place: Path, episodes: int, seed: int) -> str:
    """Episodes of the expert, from one that hardly stumbles to one that seldom arrives."""
    task = TASKS[name]
    for i, noise in enumerate(task.noises):
        must(
            "run", "maniskill_expert", *(f"env.eval.{line}" for line in world(name)), "env.eval.success=visible",
            f"runner.expert_noise={noise}", f"runner.expert_miss={task.miss}",
            f"runner.num_episodes={episodes // len(task.noises)}", "env.eval.num_envs=20",
            f"runner.seed={seed + 1000 * i}", "env.eval.data_collection.enabled=true",
            f"env.eval.data_collection.save_dir={place}", f"runner.logger.log_path={place}_{noise}",
        )  # fmt: skip
    rows = EpisodeStore(place).rows.values()
    successes = sum(bool(row.success_once) for row in rows)
    return f"{len(rows)} episodes, {sum(row.steps for row in rows):,} steps; {successes} of them with a success"


def train(folder: Path) -> str:
    """A reward model from the episodes, with all of their cameras."""
    must("train", folder / "episodes", "--out", folder / "reward")
    return "a ResNet10"


def audit(name: str, folder: Path, seed: int) -> str:
    """The report card, on episodes that nothing was trained on."""
    fresh = record(name, folder / "fresh", TASKS[name].audited, seed)
    must("audit", folder / MODEL, folder / "fresh", "--out", folder / "audit")
    metrics = json.loads((folder / "audit/metrics.json").read_text())
    counts, auroc = metrics["counts"], metrics["estimates"]["auroc"]["value"]
    return (
        f"on {fresh}; frame AUROC {auroc:.3f}, rewarded {counts['paid']} of {counts['failing_episodes']} failing "
        f"episodes, detected {counts['detected']} of {counts['success_episodes']} successes"
    )


def clone(name: str, folder: Path, seed: int) -> str:
    """The weak policy, as a run of no steps."""
    cloning = [f"episodes={TASKS[name].cloned}", f"noise={TASKS[name].clone_noise}", "epochs=100"]
    lines = [*common(name), *(f"algorithm.bc_warmup.{line}" for line in cloning), f"runner.seed={seed}"]
    run = Trainer(load("maniskill_ppo_mlp", lines).config, folder)
    run.warm_start(QUIET)
    run.save()
    run.close()
    return f"{TASKS[name].cloned} episodes"


def arm_config(name: str, arm: str, steps: int, seed: int, folder: Path, lines: list[str]) -> Config:
    """How an arm goes on from the weak policy."""
    task = TASKS[name]
    rounds = task.labels // 24
    own = [
        *common(name), *ARMS[arm], f"runner.seed={seed}", f"runner.max_steps={steps}",
        f"actor.model.model_path={folder / 'clone'}", f"reward.model.model_path={folder / MODEL}", *task.learning,
    ]  # fmt: skip
    if arm == "refined":
        interval = max(1, steps // (ENVS * task.rollout * rounds))
        own += [f"reward.refine.{line}" for line in (f"budget={task.labels}", "ask=24", f"interval={interval}")]
    return load("maniskill_ppo_mlp_resnet_reward", [*own, *lines]).config


def train_arm(config: Config, folder: Path, *, learns: bool) -> str:
    """Learn on to the end of the steps, and evaluate."""
    run = Trainer(config, folder)
    if any(folder.glob("checkpoints/step_*")):
        run.resume(folder)
    else:
        run.warm_start(QUIET)
    while learns and not run.finished():
        numbers = run.iterate()
        if run.iteration % EVALUATED == 0:
            evaluation = run.evaluate()
            run.save()
            print(
                f"  {folder.name}, {run.steps:,} steps, {run.seconds / 60:.1f} minutes: of 64 ends, true "
                f"{evaluation['eval/success_at_end']:.0%}, model {evaluation['eval/reward/model_success']:.0%}; "
                f"in training, true {numbers['reward/true_success']:.0%}, model {numbers['reward/model_success']:.0%}; "
                f"noise {numbers['train/action_std']:.3f}, lr {numbers['train/lr']:.1e}",
                file=sys.stderr, flush=True,
            )  # fmt: skip
    if learns:
        run.save()
    text = evaluated(run)
    if run.refinement is not None and (refiner := run.refinement.refiner) is not None:
        text += f"; {refiner.account(0.0)['labels']:.0f} labels, {len(run.refinement.swaps)} model swaps"
    run.close()
    return f"{run.steps:,} steps in {run.seconds / 60:.1f} minutes; {text}" if learns else text


def evaluated(run: Trainer) -> str:
    """True success at any time and at the end of fresh episodes, and the model's verdicts on the ends."""
    assert run.refinement is not None
    player = Player(run.policy, run.evaluation.env)
    second = EvalScorer(run.reward.manager, run.reward.cameras)
    outcomes = roll_out(run.evaluation.env, player, FRESH, seed=FRESH_SEED, observe=player.see, watch=second)
    model = second.truth.log("x")["x/model_success"]
    return (
        f"true success at any time {outcomes.rate(once=True)}, at the end {outcomes.rate()}; "
        f"the model says {model:.1%} of the ends, gap {100 * (model - outcomes.rate().share):+.1f} points"
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
        text = work()
        note.write_text(json.dumps({"minutes": (time.perf_counter() - start) / 60, "text": text}))
    known = json.loads(note.read_text())
    print(f"| {folder.name} | {name} | {known['minutes']:.1f} | {known['text']} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", nargs="*", help="further settings of the arms, as key=value")
    parser.add_argument("--task", default="PickCube-v1", choices=list(TASKS))
    parser.add_argument("--folder", type=Path, default=Path(".bench/maniskill_reward"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="of each arm")
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=list(ARMS))
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    name, task = args.task, TASKS[args.task]
    print("| seed | stage | minutes | what |\n|---|---|--:|---|", flush=True)
    for seed in args.seeds:
        folder: Path = args.folder / f"{name}_{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        shift = 10_000 * seed
        stage("collect", folder, lambda: record(name, folder / "episodes", task.episodes, DATA_SEED + shift))  # noqa: B023
        stage("train", folder, lambda: train(folder))  # noqa: B023
        stage("audit", folder, lambda: audit(name, folder, AUDIT_SEED + shift))  # noqa: B023
        stage("clone", folder, lambda: clone(name, folder / "clone", seed))  # noqa: B023
        for arm in args.arms:
            config = arm_config(name, arm, args.steps or task.steps, seed, folder, args.lines)
            stage(arm, folder, lambda: train_arm(config, folder / arm, learns=arm != "start"))  # noqa: B023
    return 0


if __name__ == "__main__":
    sys.exit(main())
