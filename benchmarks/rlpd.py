"""Prints how many steps RLPD needs from twenty demonstrations: with the truth as reward, and with a learned one.

Twenty successful episodes of the scripted expert with noise 0.2 are the demonstrations; the reward is sparse. Per seed:
  BC       the policy that only clones the demonstrations, as RLPD starts from it.
  oracle   the truth pays for each state.
  refined  a reward model of 200 scripted episodes pays for each state and ends episodes; it is refined with 480 labels
           on the way.
  pixels   the truth pays; the policy sees 64 px images of two cameras through the frozen encoder of that model, and
           what the robot feels of itself. At most 30 minutes.
Judged on 256 fresh episodes with the mean action. "Steps to 90 %" is the first evaluation of 128 fixed episodes, every
2000 steps, that reaches it.
"""

import argparse
import json
import logging
import sys
import time
from pathlib import Path

from referee import cpu

cpu.cap_if_needed()

import torch  # noqa: E402 - after the cap

from referee.config import PandaEnvConfig, load  # noqa: E402
from referee.demo.ablation_runs import QUIET, judge, learn  # noqa: E402
from referee.envs import make_vec  # noqa: E402
from referee.envs.policies import make_policy  # noqa: E402
from referee.episodes import EpisodeStore, Meta  # noqa: E402
from referee.episodes.recorder import Recorder, Wanted  # noqa: E402
from referee.learn.trainer import Trainer  # noqa: E402
from refinement import reward_model  # noqa: E402

DEMOS, NOISE, DEMO_SEED, FRESH_SEED, EPISODES = 20, 0.2, 800_000, 3_000_000, 256
ROW = "row.md"
PRESETS = {"oracle": "panda_rlpd_mlp", "refined": "panda_rlpd_mlp_resnet_reward", "pixels": "panda_rlpd_mlp"}
ROUND = 24
"""Iterations of 40 steps between rounds of questions: all are asked within the run."""
HEAD = (
    "| task | seed | arm | true success of 256 [95 %] | success once | steps to 90 % | evaluations, every 2000 steps "
    "| steps | minutes | updates/s | labels |"
)


def demonstrations(task: str, seed: int, folder: Path) -> Path:
    """Twenty episodes that end in success."""
    place = folder / f"{task}_{seed}_demos"
    if place.exists():
        return place
    env = make_vec(PandaEnvConfig(task=task, num_envs=DEMOS, reward_mode="sparse"))
    wanted = Wanted(only_success=True, target_success=DEMOS)
    recorder = Recorder(env, lambda: EpisodeStore(place), meta=Meta(task=task, source="expert"), wanted=wanted)
    expert = make_policy(env, "expert", noise=NOISE, seed=seed)
    recorder.reset(seed=DEMO_SEED + 1000 * seed)
    while not wanted.satisfied:
        for _ in range(env.max_episode_steps):
            recorder.step(expert())
    recorder.close()
    return place


def settings(arm: str, model: Path | None) -> list[str]:
    """What an arm changes in its preset."""
    if arm == "refined":
        return [f"reward.model.model_path={model}", "reward.refine.enabled=true", f"reward.refine.interval={ROUND}"]
    if arm == "pixels":
        lines = [
            f"env.{part}.{line}" for part in ("train", "eval") for line in (f"encoder={model}", "obs_mode=state+rgb")
        ]
        return [*lines, "runner.max_steps=30_000", "runner.max_minutes=30"]
    return []


def row(task: str, seed: int, arm: str, lines: list[str], folder: Path) -> None:
    """Train one arm, and print it."""
    place = folder / f"{task}_{seed}_{arm}"
    if (place / ROW).exists():
        print((place / ROW).read_text(), flush=True)
        return
    demos = demonstrations(task, seed, folder)
    own = [f"env.train.task={task}", f"runner.seed={seed}", f"algorithm.demos.path={demos}"]
    run = Trainer(load(PRESETS[arm], [*own, *lines]).config, place)
    run.warm_start(QUIET)
    cloned = judge(run, EPISODES, seed=FRESH_SEED)
    curve: list[list[float]] = []

    def tell(numbers: dict[str, float]) -> None:
        if run.evaluated_at == run.steps and run.evaluation:
            curve.append([run.steps, run.evaluation["eval/success_at_end"]])

    start = time.perf_counter()
    learn(run, tell)
    run.evaluate()
    minutes = (time.perf_counter() - start) / 60
    found = judge(run, EPISODES, seed=FRESH_SEED)
    reached = [int(step) for step, share in curve if share >= 0.9]
    refiner = run.refinement.refiner if run.refinement is not None else None
    labels = 0 if refiner is None else refiner.account(0.0)["labels"]
    updates = run.learner.updates  # type: ignore[union-attr]
    text = (
        f"| {task} | {seed} | BC | {cloned} | | | | 0 | | | |\n"
        f"| {task} | {seed} | {arm} | {found} | {run.evaluation.outcomes.rate(once=True).share:.0%} "
        f"| {f'{reached[0]:,}' if reached else '–'} | {' '.join(f'{100 * share:.0f}' for _, share in curve)} "
        f"| {run.steps:,} | {minutes:.1f} | {updates / run.seconds:.0f} | {labels} |"
    )
    print(text, flush=True)
    (place / ROW).write_text(text)
    (place / "curve.json").write_text(json.dumps(curve))
    run.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="PickCube")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", default=["oracle", "refined"], choices=list(PRESETS))
    parser.add_argument("--model", type=Path, help="reward model of the arms `refined` and `pixels`; made if not given")
    parser.add_argument("--folder", type=Path, default=Path(".bench/rlpd"), help="goes on with what is there")
    parser.add_argument("lines", nargs="*", help="further settings, as key=value")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    print(HEAD + "\n|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for seed in args.seeds:
        for arm in args.arms:
            model = None if arm == "oracle" else args.model or reward_model(args.task, args.folder)
            row(args.task, seed, arm, [*settings(arm, model), *args.lines], args.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
