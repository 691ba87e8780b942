"""Prints how a peg is learned on the twin from twenty demonstrations, paid by nothing but a learned reward.

The hole stands elsewhere in each episode, the hand begins up to 10 cm from the middle both ways, and there are 4 s. All
by commands that are printed:
  demonstrations  twenty episodes of the scripted expert with an unsteady hand, by `realworld_collect_data`.
  more recorded   sixty that stumble, for the reward model alone: most of them fail.
  reward model    of these eighty; its report card is of forty fresh ones.
  RL              `realworld_peginsertion_rlpd_cnn_async`, at twice an arm's 10 Hz. The model's verdict
                  alone pays and ends episodes; the truth is written down. The policy sees two 64 px cameras through the
                  frozen encoder of the reward model, and what the arm feels of itself. Nobody steps in.
Then each kept checkpoint is judged on fresh episodes with its mean action: a success is a peg that is in the hole at
the end. A robot-minute is 600 control steps; the way back to the start between episodes is not counted.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from referee import cpu

cpu.cap_if_needed()

import torch  # noqa: E402 - after the cap

from referee.episodes import EpisodeStore  # noqa: E402
from referee.learn.roll_out import EvalScorer, roll_out  # noqa: E402
from referee.metrics.rates import Rate  # noqa: E402
from referee.models import Artifact  # noqa: E402
from referee.recipes.trained import TWINS, bring_back  # noqa: E402
from referee.rewards import RewardManager, RewardOptions  # noqa: E402
from referee.runs.logbook import read_metrics  # noqa: E402

DEMOS, RECORDED, FRESH = 20, 60, 40
STEADY, STUMBLING = 0.4, 1.2
"""Noise of the expert's hand, in full steps of 1 cm."""
PER_MINUTE = 600
DEMO_SEED, FRESH_SEED = 800_000, 3_000_000
TWIN = ["robot.driver=twin", "robot.realtime=false"]
START, LIMIT = 0.1, 40
BESIDE = (
    "HIL-SERL's public figure for a peg is 100 % after about 90 minutes of a real robot, with a person who steps in. "
    "This is a twin: it has no friction of joints, no slipping peg, and nobody's hand in the picture."
)


def do(*words: str, log: Path) -> float:
    """Run `referee …` as a person would, with its words in a file; returns the minutes that it took."""
    print(f"    referee {shlex.join(words)}", flush=True)
    began = time.monotonic()
    with log.open("a") as out:
        done = subprocess.run([str(Path(sys.executable).with_name("referee")), *words], stdout=out, stderr=out)
    if done.returncode:
        raise SystemExit(f"it failed, see {log}")
    return (time.monotonic() - began) / 60


def record(place: Path, count: int, noise: float, seed: int, *more: str) -> Path:
    """So many episodes of the expert; each frame is labelled with the twin's truth, as a person would label it."""
    if not place.exists():
        do(
            "run", "realworld_collect_data", *TWIN, "runner.policy=expert", f"runner.expert_noise={noise}",
            f"runner.num_data_episodes={count}", f"runner.seed={seed}", f"env.eval.reset_range={START}", *more,
            f"runner.logger.log_path={place}", log=place.parent / "log.txt",
        )  # fmt: skip
    return place / "recording"


def reward_model(demos: Path, seed: int, folder: Path) -> Path:
    """The artifact that `referee train` makes, with its report card."""
    log, model = folder / "log.txt", folder / "reward" / "checkpoints" / "best_model"
    short = f"env.eval.max_episode_steps={PER_MINUTE // 6}"
    stumbling = record(folder / "stumbling", RECORDED, STUMBLING, seed + 1, short)
    fresh = record(folder / "fresh", FRESH, STUMBLING, seed + 2, short)
    if not model.exists():
        do("episodes", "merge", str(demos), str(stumbling), "--out", str(folder / "recorded"), log=log)
        do("train", str(folder / "recorded"), "--out", str(folder / "reward"), log=log)
    if not (folder / "card").exists():
        do("audit", str(model), str(fresh), "--out", str(folder / "card"), log=log)
    return model


def learn(demos: Path, model: Path, args: argparse.Namespace, more: list[str], folder: Path) -> Path:
    """The run, with a checkpoint of every robot-minute."""
    place = folder / "run"
    if not place.exists():
        both = [
            f"env.{part}.{line}" for part in ("train", "eval")
            for line in (f"encoder={model}", f"reset_range={START}", f"max_episode_steps={LIMIT}")
        ]  # fmt: skip
        do(
            "run", "realworld_peginsertion_rlpd_cnn_async", *TWIN, f"runner.background.pace={args.pace}",
            f"algorithm.demos.path={demos}", "actor.model.model_type=mlp", *both,
            "reward.use_reward_model=true", "reward.reward_mode=per_step", "reward.terminate_on=model",
            "env.train.terminate_on_success=false", f"reward.model.model_path={model}",
            f"runner.seed={args.seed}", f"runner.max_steps={round(PER_MINUTE * args.robot_minutes)}",
            f"runner.max_minutes={args.minutes}", "runner.save_interval=60", "runner.keep_every=1", *more,
            f"runner.logger.log_path={place}", log=folder / "log.txt",
        )  # fmt: skip
    return place


def judged(checkpoint: Path, model: Path, episodes: int) -> tuple[Rate, float]:
    """True success of a checkpoint's mean actions in fresh episodes, and what the model says of their last states."""
    env, player = bring_back(checkpoint, TWINS)
    artifact = Artifact.open(model)
    second = EvalScorer(RewardManager(artifact, RewardOptions()), artifact.spec.cameras)
    found = roll_out(env, player, episodes, seed=FRESH_SEED, observe=player.see, watch=second)
    env.close()
    return found.rate(), second.truth.log("x")["x/model_success"]


def card(folder: Path, demos: Path) -> None:
    """What the reward model was made of, and what its report card says."""
    found = json.loads((folder / "card" / "metrics.json").read_text())
    counts, worth = found["counts"], found["estimates"]
    shown, whole = (EpisodeStore(place) for place in (demos, folder / "recorded"))
    print(f"\n{len(shown)} demonstrations of {_steps(shown):,} steps; the reward model: {len(whole)} episodes, every "
          f"frame labelled ({_steps(whole) + len(whole):,}). On {counts['episodes']} fresh episodes: AUROC "
          f"{worth['auroc']['value']:.4f}, {counts['paid']} of {counts['failing_episodes']} failing ones paid, "
          f"{counts['missed']} of {counts['success_episodes']} successes missed.")  # fmt: skip


def _steps(store: EpisodeStore) -> int:
    return sum(len(episode) for episode in store)


def table(run: Path, model: Path, args: argparse.Namespace) -> None:
    """Success over robot-minutes."""
    lines = read_metrics(run)
    kept = {int(each.name.removeprefix("step_")): each for each in (run / "checkpoints").glob("step_*")}
    every, last, before = args.every * PER_MINUTE, max(kept), 0
    wanted = [min(kept), *range(every, last - every // 2, every), last]
    print("\n| robot-minutes | minutes by the clock | true success [95 %] | the model says | gap, points "
          "| training episodes: true success | gap of its states, points | updates/step |")  # fmt: skip
    print("|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for want in wanted:
        step = min(kept, key=lambda each: abs(each - want))
        count = args.final_episodes if step in (wanted[0], last) else args.episodes
        rate, said = judged(kept[step], model, count)
        low, high = rate.interval
        part = [line for line in lines if before < line["step"] <= step]
        ends = [line["env/success_at_end"] for line in part if "env/success_at_end" in line]
        gap = 100 * np.mean([line["reward/hacking_gap"] for line in part])
        note = " (the clone)" if step == wanted[0] else ""
        print(f"| {step / PER_MINUTE:.1f}{note} | {part[-1]['time/minutes']:.1f} "
              f"| {rate.share:.0%} [{low:.0%}, {high:.0%}] of {count} | {said:.0%} | {100 * (said - rate.share):+.0f} "
              f"| {np.mean(ends):.0%} of about {len(ends)} | {gap:+.1f} | {part[-1]['async/utd']:.1f} |",
              flush=True)  # fmt: skip
        before = step


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--robot-minutes", type=float, default=24)
    parser.add_argument("--minutes", type=float, default=60, help="of learning by the clock, at most")
    parser.add_argument("--pace", type=float, default=20, help="steps per second; beyond 10, faster than an arm")
    parser.add_argument("--every", type=int, default=3, help="robot-minutes between judged checkpoints")
    parser.add_argument("--episodes", type=int, default=100, help="of each; the clone and the last one have more")
    parser.add_argument("--final-episodes", type=int, default=256)
    parser.add_argument("--folder", type=Path, default=Path(".bench/twin_peg"), help="goes on with what is there")
    parser.add_argument("lines", nargs="*", help="further settings of the RL, as key=value")
    args = parser.parse_args()
    torch.set_num_threads(1)
    folder = args.folder.resolve() / f"seed_{args.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    seed = DEMO_SEED + 10 * args.seed
    demos = record(folder / "demos", DEMOS, STEADY, seed)
    model = reward_model(demos, seed, folder)
    run = learn(demos, model, args, args.lines, folder)
    card(folder, demos)
    table(run, model, args)
    print(f"\n{BESIDE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
