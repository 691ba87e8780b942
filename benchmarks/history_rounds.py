"""Prints what a policy learns from a model of trends that learns with it, in rounds.

A model that has only seen others move is soon fooled by the policy that it pays. So: windows of a wandering expert and
of a policy that learns with the dense reward (seed 0) are learned first, at their natural rates. Then a weak policy of
another seed goes on, paid by the model's word alone; after each round, episodes of this policy, with its noise, are
recorded and cut into windows, whose trends the simulation names, as a person would; the model learns from them and
some older ones, and pays the next round. Judged on 256 fixed episodes with the mean action.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from referee import cpu
from vlm_trend import SHOWN, WEAK, collect, live

cpu.cap_if_needed()

from referee.config import load  # noqa: E402 - after the cap
from referee.config.schema import DataCollectionConfig, PandaEnvConfig  # noqa: E402
from referee.datasets.source import open_source  # noqa: E402
from referee.datasets.windows import WindowOptions, build_windows  # noqa: E402
from referee.models.vlm.qwen import QwenOptions  # noqa: E402
from referee.rl.policy import Player  # noqa: E402
from referee.runners.arms import QUIET, weak_config, weak_policy  # noqa: E402
from referee.runners.environments import make_env  # noqa: E402
from referee.runners.rollout import roll_out  # noqa: E402
from referee.runners.training import Training  # noqa: E402
from referee.training.vlm.options import SftOptions  # noqa: E402
from referee.training.vlm.sft import fine_tune  # noqa: E402

DELTA, OLDER, WANDERER_SEED, OWN_SEED = 0.03, 3, 7, 2_100_000
STEADY = ["algorithm.normalise_observations=false", "runner.film=false"]
BEGIN = ["actor.model.start_log_std=-1.5", "actor.model.fresh_critic=true", "algorithm.critic_warmup=5"]


def start_of(task: str, seed: int, folder: Path) -> Path:
    """A weak policy."""
    place = folder / f"start_{task}_{seed}"
    if not place.exists():
        weak_policy(weak_config(task, seed), place, success=WEAK).close()
    return place


def cut(folder: Path, samples: int, val_split: float = 0.2) -> Path:
    """The windows of what was recorded in a folder, as common as they are."""
    options = WindowOptions(
        num_samples_per_episode=samples, delta_threshold=DELTA, balance=False, val_split=val_split
    )  # fmt: skip
    build_windows(open_source(folder / "collected_data"), folder / "windows", options)
    return folder / "windows"


def before(task: str, steps: int, folder: Path) -> list[Path]:
    """Windows from before the policy that is to learn: of a wandering expert, and of another policy."""
    wanderer, other = folder / "wanderer", folder / "live_0"
    if not (wanderer / "windows").exists():
        collect(wanderer, task, 320, WANDERER_SEED)
        cut(wanderer, 20)
    if not (other / "windows").exists():
        live(folder, task, steps)
        cut(other, 16)
    return [wanderer / "windows", other / "windows"]


def teach(model: Path, windows: Sequence[Path], out: Path, *, lr: float, epochs: int) -> Path:
    """The model after some more windows; the last ones also choose its best weights."""
    best = out / "checkpoints" / "best_model"
    if not best.exists():
        options = SftOptions(
            model=QwenOptions(model_path=model), output=out, train=tuple(each / "train" for each in windows),
            val=(windows[-1] / "eval",), builder_params=SHOWN, lora=None, lr=lr, weight_decay=0.05, warmup_ratio=0.1,
            global_batch_size=32, micro_batch_size=32, eval_batch_size=64, max_val_windows=400, random_shift=1,
            max_epochs=epochs, num_threads=1,
        )  # fmt: skip
        fine_tune(options, Console(quiet=True))
    return best


def learn(
    task: str, seed: int, policy: Path, model: Path, folder: Path, steps: int, *, first: bool
) -> tuple[Training, dict[str, float]]:
    """One round: the policy goes on, paid by the model; with the numbers of its last iteration."""
    more = BEGIN if first else ["algorithm.critic_warmup=1"]
    lines = [f"env.train.task={task}", f"runner.seed={seed}", f"actor.model.model_path={policy}", *STEADY, *more,
             f"runner.max_steps={steps}", "runner.eval_episodes=256", f"reward.model.model_path={model}",
             "reward.model.readout=score", "reward.model.score_pay=expected"]  # fmt: skip
    run = Training(load("panda_ppo_mlp_qwentrend_reward", lines).config, folder)
    run.warm_start(QUIET)
    if first:
        print(f"| 0 | {run.outcomes.rate()} | | | 0 | |", flush=True)
    while not run.finished():
        numbers = run.iterate()
    run.evaluate()
    run.save()
    return run, numbers


def record(run: Training, task: str, episodes: int, number: int, folder: Path) -> Path:
    """Windows of the policy as it is now, with its noise."""
    config = PandaEnvConfig(task=task, num_envs=64, data_collection=DataCollectionConfig(enabled=True))
    env = make_env(config, folder, "policy")
    player = Player(run.policy, env, noise_seed=number)
    roll_out(env, player, episodes, seed=OWN_SEED + 1000 * number, observe=player.see)
    env.close()
    return cut(folder, 32, val_split=0.1)


def main() -> None:
    """All rounds; what lies in the folder of the first windows and the first model is not made again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="to begin with, as vlm_trend.py makes it")
    parser.add_argument("--task", default="Reach")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=9_600, help="of each")
    parser.add_argument("--episodes", type=int, default=192, help="recorded after each")
    parser.add_argument("--before", type=int, default=48_000, help="steps of the other policy")
    parser.add_argument("--folder", type=Path, default=Path(".bench/history_rounds"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    task, folder = options.task, options.folder
    known = before(task, options.before, folder)
    model = teach(options.model, known, folder / "taught", lr=1.5e-3, epochs=3)
    policy, began, labels = start_of(task, options.seed, folder), time.perf_counter(), 0
    place = folder / f"rounds_{options.seed}"
    print("| steps | true success [95 %] | training episodes | agreement | windows labelled | minutes |")
    print("|--:|--:|--:|--:|--:|--:|")
    for number in range(options.rounds):
        policy_of = place / f"policy_{number}"
        run, told = learn(task, options.seed, policy, model, policy_of, options.steps, first=number == 0)
        minutes = (time.perf_counter() - began) / 60
        print(f"| {(number + 1) * options.steps:,} | {run.outcomes.rate()} | {told['env/success_at_end']:.0%} "
              f"| {told['reward/agreement']:.2f} | {labels:,} | {minutes:.1f} |", flush=True)  # fmt: skip
        policy = policy_of
        if number + 1 < options.rounds:
            known.append(record(run, task, options.episodes, number, place / f"own_{number}"))
            labels += 32 * options.episodes
            model = teach(model, known[-1 - OLDER :], place / f"model_{number}", lr=1e-3, epochs=1)
        run.close()


if __name__ == "__main__":
    main()
