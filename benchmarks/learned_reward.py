"""Prints what becomes of a weak policy that only a learned reward pays, beside the truth as the reward.

Stage 1, per seed: PPO with the dense reward, stopped when a look at 128 episodes finds 27 % true success or more.
Stage 2, per task: 60 episodes of each of these policies and 120 of the scripted expert with noise are recorded, with
two cameras of 64 px; `referee train` makes a reward model of them. The truth labels these frames, as a person would.
`--poor` records 60 episodes of the scripted expert and none of the policies: a model that is easily fooled.
Stage 3, per seed, from the weak policy: PPO that is paid at the end of episodes, by the model alone ("learned") or,
with the same budget, by the truth alone ("oracle"). In its first ten iterations only the critic learns. Judged before
and after on 512 fresh episodes, with and without noise.

The curves are of the training episodes themselves, with the noise of exploration: true success and what the model says.
"""

import argparse
import contextlib
import io
import logging
import sys
import time
from pathlib import Path

import numpy as np

from referee import cpu

cpu.cap_if_needed()

from referee.cli import main as referee  # noqa: E402 - after the cap
from referee.config import PandaEnvConfig  # noqa: E402
from referee.envs import make_vec  # noqa: E402
from referee.envs.policies import make_policy  # noqa: E402
from referee.episodes import EpisodeStore, Meta  # noqa: E402
from referee.episodes.recorder import Recorder  # noqa: E402
from referee.rl.policy import Player  # noqa: E402
from referee.runners.arms import NOISE, QUIET, arm_config, judge, learn, weak_config, weak_policy  # noqa: E402
from referee.runners.training import Training  # noqa: E402

RECORDED, EXPERT, POOR = 60, 120, 60
EPISODES, FRESH_SEED, DATA_SEED = 512, 3_000_000, 700_000
POINTS = 8
ORACLE = ["reward.reward_weight=0", "reward.gt_success_bonus=1"]


def record(task: str, starts: list[Training], folder: Path) -> EpisodeStore:
    """Stage 2: what the reward model learns from; without policies, what a poor one learns from."""
    for number, start in enumerate([None, *starts]):
        count = RECORDED if start is not None else EXPERT if starts else POOR
        env = make_vec(PandaEnvConfig(task=task, num_envs=count, cameras=("front", "side")))
        source = "expert" if start is None else "policy"
        recorder = Recorder(env, lambda: EpisodeStore(folder), meta=Meta(task=task, source=source))
        observation, _ = recorder.reset(seed=DATA_SEED + 1000 * number)
        random = np.random.default_rng(number)
        noise = random.permutation(np.linspace(*NOISE, count)).astype(np.float32)[:, None]
        expert = make_policy(env, "expert") if start is None else None
        player = None if start is None else Player(start.policy, env, noise_seed=number)
        for _ in range(env.max_episode_steps):
            if player is not None:
                player.see(observation)
                actions = player()
            else:
                assert expert is not None
                actions = expert()
                actions = np.clip(actions + noise * random.standard_normal(actions.shape, dtype=np.float32), -1, 1)
            observation, *_ = recorder.step(actions)
        recorder.close()
    return EpisodeStore(folder)


def reward_model(store: EpisodeStore, folder: Path) -> tuple[Path, float]:
    """The artifact that `referee train` makes, and its seconds."""
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        code = referee(["train", str(store.root), "--out", str(folder)])
    if code:
        raise SystemExit(f"referee train {store.root} failed")
    return folder / "checkpoints" / "best_model", time.perf_counter() - start


def curve(values: list[float]) -> str:
    """Means of equal parts of a run."""
    return " ".join(f"{100 * np.nanmean(part):.0f}" for part in np.array_split(values, POINTS))


def pay(task: str, seed: int, start: Path, artifact: Path, steps: int, extra: list[str], folder: Path) -> Training:
    """Stage 3; prints its row."""
    run = Training(arm_config(task, seed, start, artifact, f"runner.max_steps={steps}", *extra), folder)
    run.warm_start(QUIET)
    before = [judge(run, EPISODES, seed=FRESH_SEED, noise=noise) for noise in (False, True)]
    course = learn(run)
    after = [judge(run, EPISODES, seed=FRESH_SEED, noise=noise) for noise in (False, True)]
    name = "oracle" if extra else "learned"
    print(
        f"| {task} | {seed} | {name} | {before[0]} | {after[0]} | {before[1]} | {after[1]} | {curve(course.true)} "
        f"| {curve(course.model)} | {_alarm(run)} | {run.seconds / 60:.1f} |",
        flush=True,
    )
    return run


def _alarm(run: Training) -> str:
    raised = None if run.alarm is None else run.alarm.first_at
    return "–" if raised is None else f"{raised:,}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["PickCube", "PushCube"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=320_000, help="of each training in stage 3")
    parser.add_argument("--poor", action="store_true", help="a reward model of few scripted episodes alone")
    parser.add_argument("--folder", type=Path, default=Path(".bench/learned_reward"))
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # episodes of noisy actors flicker, and are meant to
    if args.folder.exists():
        raise SystemExit(f"{args.folder} is there already: remove it, or choose another --folder")
    for task in args.tasks:
        starts = [weak_policy(weak_config(task, seed), args.folder / f"{task}_{seed}_start") for seed in args.seeds]
        store = record(task, [] if args.poor else starts, args.folder / f"{task}_episodes")
        artifact, seconds = reward_model(store, args.folder / f"{task}_reward")
        good = sum(bool(row.success_once) for row in store.rows.values())
        print(f"\n{task}: stage 1 took " + ", ".join(f"{run.steps:,}" for run in starts) + " steps; a reward model "
              f"of {len(store)} episodes, {good} with a success, in {seconds:.0f} s\n")  # fmt: skip
        print("| task | seed | paid by | start: true success | end: true success | start, with noise | end, with noise "
              "| true success while learning, % | model's, % | alarm at step | minutes |")  # fmt: skip
        print("|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
        for seed, start in zip(args.seeds, starts, strict=True):
            for extra in ([], ORACLE):
                name = args.folder / f"{task}_{seed}_{'oracle' if extra else 'learned'}"
                pay(task, seed, start.folder, artifact, args.steps, extra, name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
