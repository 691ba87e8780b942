"""Prints how ManiSkill's PushCube-v1 is learned from a learned reward on a CPU: collect, train, audit, refine.

1. PPO with the dense reward, whose episodes are recorded with one camera of 64 px (unlit, light scene), until 150 of
   them have a success. On the way, the first policy with a true success of 20 % or more is put aside.
2. `referee dataset frames` and `referee train` make a reward model of them; `referee audit` says how far to trust it.
3. That first policy learns on, paid by the model's verdict on the last state of each episode and by nothing else; 24
   frames are asked about every five iterations, 240 in all, and the truth answers, as a person would.
Judged on 256 fresh episodes with the mean action: true success at any time and at the end.
"""

import argparse
import logging
import shutil
import time
from pathlib import Path

import torch

from referee import cpu

cpu.cap_if_needed()

from referee.cli import main as referee  # noqa: E402 - after the cap
from referee.config import Config, load  # noqa: E402
from referee.metrics import Rate  # noqa: E402
from referee.rl.policy import Player  # noqa: E402
from referee.runners.arms import QUIET  # noqa: E402
from referee.runners.rollout import roll_out  # noqa: E402
from referee.runners.training import Training  # noqa: E402

WANTED, WEAK, FRESH_SEED, EPISODES = 150, 0.2, 3_000_000, 256
LOOKS = ["task=PushCube-v1", "cameras=[front]", "image_size=64", "shader=unlit", "light_scene=true"]
COMMON = [
    *(f"env.{name}.{line}" for name in ("train", "eval") for line in LOOKS),
    "env.train.num_envs=20", "env.eval.num_envs=16", "algorithm.rollout_steps=50", "actor.global_batch_size=125",
    "algorithm.update_epochs=8", "actor.model.hidden_dims=[256,256]", "runner.eval_episodes=64",
    "runner.max_steps=100_000",
]  # fmt: skip


def settings(preset: str, seed: int, *more: str) -> Config:
    """The configuration of one of the two policies."""
    return load(preset, [*COMMON, f"runner.seed={seed}", *more]).config


def collect(config: Config, folder: Path) -> tuple[Training, float]:
    """Train with the dense reward and record until successes are enough; the weak policy goes to `folder`/weak."""
    run = Training(config, folder)
    run.warm_start(QUIET)
    weak, successes = -1.0, 0.0
    while not run.finished() and (weak < 0 or successes < WANTED):
        numbers = run.iterate()
        successes += numbers["env/success_once"] * run.rollout.num_envs  # each of which ends one episode in a rollout
        if weak < 0 and numbers["env/success_once"] > WEAK / 4:
            run.evaluate()
            if run.outcomes.rate(once=True).share >= WEAK:
                weak = run.outcomes.rate(once=True).share
                shutil.copytree(run.save(), folder / "weak")
    run.close()
    return run, weak


def learn(config: Config, folder: Path, target: float) -> Training:
    """Let the reward model pay, until an evaluation finds what is wanted in the model's own word, or the steps end."""
    run = Training(config, folder)
    run.warm_start(QUIET)
    while not run.finished():
        numbers = run.iterate()
        if run.iteration % 5 == 0:
            found = run.evaluate()
            said, true = found["eval/reward/model_success"], found["eval/success_once"]
            gap = numbers.get("reward/hacking_gap", 0.0)
            print(f"  {run.steps:>7,} steps: model {said:.0%}, true {true:.0%}, gap {gap:+.2f}", flush=True)
            if said >= target:  # the truth decides nothing
                break
    run.save()
    return run


def judge(run: Training) -> tuple[Rate, Rate]:
    """True success at any time and at the end, on fresh episodes."""
    player = Player(run.policy, run.eval_env)
    found = roll_out(run.eval_env, player, EPISODES, seed=FRESH_SEED, observe=player.see)
    return found.rate(once=True), found.rate()


def main() -> None:
    """The whole way, or what is missing of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".bench/maniskill_pushcube"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, default=0.97, help="model success at which learning ends")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    folder, seed, rows = arguments.folder, arguments.seed, []
    start = time.perf_counter()

    def tell(what: str, found: str) -> None:
        nonlocal start
        now = time.perf_counter()
        rows.append(f"| {what} | {(now - start) / 60:.1f} | {found} |")
        print(rows[-1], flush=True)
        start = now

    record = "env.train.data_collection.enabled=true"
    first, weak = collect(settings("maniskill_ppo_mlp", seed, record), folder / "dense")
    tell("collect", f"{first.steps:,} steps with the dense reward; weak policy {weak:.0%} of 64")
    frames, model = folder / "frames", folder / "reward/checkpoints/best_model"
    referee(["dataset", "frames", "--raw-data-path", str(folder / "dense/collected_data"), "--output-dir", str(frames)])
    referee(["run", "reward_training", f"data.data_path={frames}", f"runner.logger.log_path={folder / 'reward'}"])
    tell("train", "a ResNet10 of 64 px")
    referee(["audit", str(model)])
    tell("audit", "report card beside the model")
    lines = [f"actor.model.model_path={folder / 'dense/weak'}", f"reward.model.model_path={model}",
             "reward.refine.enabled=true", "reward.refine.budget=240", "actor.model.start_log_std=-1.0"]  # fmt: skip
    second = learn(settings("maniskill_ppo_mlp_resnet_reward", seed, *lines), folder / "learned", arguments.target)
    once, end = judge(second)
    tell("PPO, paid by the model", f"{second.steps:,} steps; true success once {once}, at the end {end}")
    second.close()
    print("\n| stage | minutes | what |\n|---|---|---|", *rows, sep="\n")


if __name__ == "__main__":
    main()
