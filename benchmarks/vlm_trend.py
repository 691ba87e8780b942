"""Prints how well a tiny Qwen3-VL tells trends that it learned here, and how fast its two read-outs are.

The whole pipeline, without any download: an expert that goes astray now and then is recorded, its episodes are cut into
windows, a random model is fine-tuned (all weights), an adapter carries it over to a second task (LoRA), and windows of
fresh episodes are judged, which chose nothing. Then a weak policy learns on with the dense reward while its episodes
are recorded, and the model learns from these windows, too: before it pays a policy, it has seen how one moves. Stages
whose results lie in the folder are not done again.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from referee import cpu

cpu.cap_if_needed()

from referee.config import load as load_preset  # noqa: E402 - after the cap
from referee.config.datasets import WindowConfig  # noqa: E402
from referee.config.runner import TrainVLMRunner  # noqa: E402
from referee.config.schema import DataCollectionConfig, PandaEnvConfig  # noqa: E402
from referee.config.vlm import (  # noqa: E402
    ParamConfig,
    VLMActorConfig,
    VLMDataConfig,
    VLMOptimConfig,
    VLMTrainedModelConfig,
)
from referee.datasets.source import open_source  # noqa: E402
from referee.datasets.windows import NEGATIVE, POSITIVE, build_windows  # noqa: E402
from referee.demo.ablation_runs import QUIET, weak_config, weak_policy  # noqa: E402
from referee.envs.contract import RefereeVectorEnv  # noqa: E402
from referee.envs.policies import make_policy  # noqa: E402
from referee.learn.environments import make_env  # noqa: E402
from referee.learn.roll_out import roll_out  # noqa: E402
from referee.learn.trainer import Trainer  # noqa: E402
from referee.metrics import Rate  # noqa: E402
from referee.models.vlm.judge import HistoryVLMRewardModel, ReadOut  # noqa: E402
from referee.models.vlm.prompts import make_input_builder  # noqa: E402
from referee.models.vlm.qwen import QwenOptions, load  # noqa: E402
from referee.models.vlm.tiny import tiny_init  # noqa: E402
from referee.training.vlm.batches import score_segments  # noqa: E402
from referee.training.vlm.scores import TrendScores  # noqa: E402
from referee.training.vlm.segments import Segment, read_segments  # noqa: E402
from referee.training.vlm.settings import FineTuning  # noqa: E402
from referee.training.vlm.sft import fine_tune  # noqa: E402

NUM_ENVS, SEED, FRESH_SEED = 32, 7, 1_007
SHOWN = {"as_video": True, "max_frames": 2}
"""The first and the last frame of each camera as a clip: the cheapest way to show a motion."""
WEAK = 0.27
"""True success of the policy whose windows are recorded."""


class Wanderer:
    """The expert, but for some steps it backs off, or drifts in one direction: trends of both signs."""

    def __init__(self, env: RefereeVectorEnv, seed: int) -> None:
        self._expert = make_policy(env, "expert", noise=0.3, seed=seed)
        self._random = np.random.default_rng(seed)
        count = env.num_envs
        self._left, self._mode, self._opens = np.zeros(count, int), np.zeros(count, int), np.zeros(count, bool)
        self._way = np.zeros((count, 3), np.float32)

    def __call__(self) -> np.ndarray:
        """The next actions f32[n,4]."""
        actions = self._expert()
        new = self._left <= 0
        count = int(new.sum())
        self._left[new] = self._random.integers(4, 13, count)
        self._mode[new] = self._random.choice(3, count, p=(0.5, 0.3, 0.2))
        way = self._random.standard_normal((count, 3)).astype(np.float32)
        self._way[new] = way / np.linalg.norm(way, axis=1, keepdims=True)
        self._opens[new] = self._random.random(count) < 0.5
        self._left -= 1
        back, drift = self._mode == 1, self._mode == 2
        actions[back, :3] *= -1
        actions[drift, :3] = self._way[drift]
        actions[(back | drift) & self._opens, 3] = 1.0
        return actions


def collect(folder: Path, task: str, episodes: int, seed: int) -> None:
    config = PandaEnvConfig(task=task, num_envs=NUM_ENVS, data_collection=DataCollectionConfig(enabled=True))
    env = make_env(config, folder, "wanderer")
    found = roll_out(env, Wanderer(env.unwrapped, seed), episodes, seed=seed)
    print(f"{task}: the wandering expert succeeds in", found.rate())
    env.close()


def prepare(folder: Path, task: str, args: argparse.Namespace, *, fresh: bool = False) -> Path:
    """The windows of a task, recorded and cut where they are not there yet."""
    windows, raw = (folder / f"{part}{'_fresh' * fresh}_{task}" for part in ("windows", "episodes"))
    if not windows.exists():
        if not raw.exists():
            collect(raw, task, args.fresh if fresh else args.episodes, FRESH_SEED if fresh else SEED)
        options = WindowConfig(stride=2, delta_threshold=args.delta_threshold)
        print(build_windows(open_source(raw / "collected_data"), windows, options))
    return windows


def fresh_segments(folder: Path, task: str, args: argparse.Namespace) -> list[Segment]:
    """Windows of episodes that were recorded for this alone."""
    place = prepare(folder, task, args, fresh=True)
    return read_segments([place / "train", place / "eval"])


def live(folder: Path, task: str, steps: int, *, seed: int = 0) -> None:
    """Let a weak policy learn on with the dense reward, and record its training episodes, noise included."""
    start = folder / f"start_{seed}"
    if not start.exists():
        weak_policy(weak_config(task, seed), start, success=WEAK).close()
    lines = [f"env.train.task={task}", f"runner.seed={seed}",
             f"actor.model.model_path={start}", "actor.model.start_log_std=-1.5",
             "actor.model.fresh_critic=true", "algorithm.critic_warmup=5", "algorithm.normalise_observations=false",
             f"runner.max_steps={steps}", "runner.eval_episodes=64",
             "env.train.data_collection.enabled=true"]  # fmt: skip
    run = Trainer(load_preset("panda_ppo_mlp", lines).config, folder / f"live_{seed}")
    run.warm_start(QUIET)
    while not run.finished():
        numbers = run.iterate()
    print(f"{task}: a policy, at the end of its {run.steps:,} steps with {numbers['env/success_at_end']:.0%}")
    run.close()


def own_windows(folder: Path, task: str, args: argparse.Namespace) -> Path:
    """The windows of that policy, every one of its episodes."""
    windows, raw = folder / f"windows_own_{task}", folder / "live_0"
    if not windows.exists():
        if not raw.exists():
            live(folder, task, args.own_steps)
        options = WindowConfig(delta_threshold=args.delta_threshold)
        print(build_windows(open_source(raw / "collected_data"), windows, options))
    return windows


def settings_of(
    args: argparse.Namespace, windows: tuple[Path, ...], model: Path, output: Path, *, lora: bool = False,
    lr: float | None = None, epochs: int | None = None,
) -> FineTuning:  # fmt: skip
    """lr, epochs: None = those of the arguments."""
    return FineTuning(
        output=output,
        data=VLMDataConfig(
            train_data_paths=tuple(str(each / "train") for each in windows),
            val_data_paths=(str(windows[0] / "eval"),),
            input_builder_params={name: ParamConfig(value=value) for name, value in SHOWN.items()},
            max_val_windows=400,
        ),
        actor=VLMActorConfig(
            model=VLMTrainedModelConfig(model_path=str(model), is_lora=lora, lora_rank=16),
            optim=VLMOptimConfig(lr=lr or (args.lora_lr if lora else args.lr), weight_decay=0.05, warmup_ratio=0.1),
            global_batch_size=args.batch,
            micro_batch_size=args.batch,
            eval_batch_size=64,
            random_shift=1,
            num_threads=args.threads,
        ),
        runner=TrainVLMRunner(recipe="train_vlm", max_epochs=epochs or (args.lora_epochs if lora else args.epochs)),
    )


def row(name: str, segments: list[Segment], model: Path, lora: Path | None = None) -> str:
    """A line of the table: trends of the windows, as many positive as negative ones."""
    both = {label: [each for each in segments if each.label == label] for label in (POSITIVE, NEGATIVE)}
    fewest = min(map(len, both.values()))
    random = np.random.default_rng(0)
    even = [some[place] for some in both.values() for place in random.choice(len(some), fewest, replace=False)]
    rest = [each for each in segments if each.label not in both]
    some = even + [rest[place] for place in random.choice(len(rest), min(fewest, len(rest)), replace=False)]
    loaded = load(QwenOptions(model_path=model, lora_path=lora))
    said = score_segments(loaded, some, make_input_builder(params=SHOWN), size=64)
    found = TrendScores.of([each.label for each in some], said)
    trend = Rate(found.up.successes + found.down.successes, found.up.trials + found.down.trials)
    recalls = " / ".join(f"{100 * rate.share:.1f}" for rate in found.confusion.recalls.values())
    return f"| {name} | {trend} | {found.confusion.accuracy} | {recalls} |"


def speeds(model: Path, segments: list[Segment]) -> None:
    """Windows per second of both read-outs, of one model in one run; by the CPU's own clock, other work counts less."""
    loaded, windows = load(QwenOptions(model_path=model)), [each.window() for each in segments[:256]]
    print("\n| read-out | windows/s | windows per second of CPU |\n|---|--:|--:|")
    for readout in ("generate", "score", "generate", "score"):
        judge = HistoryVLMRewardModel(loaded, make_input_builder(params=SHOWN), how=ReadOut(readout=readout))
        judge.judge(windows[:64])
        start, spent = time.perf_counter(), time.process_time()
        judge.judge(windows)
        took, spent = time.perf_counter() - start, time.process_time() - spent
        print(f"| {readout} | {len(windows) / took:.1f} | {len(windows) / spent:.1f} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(".bench/vlm_trend"))
    parser.add_argument("--task", default="PickCube")
    parser.add_argument("--other", default="PushCube", help="what the adapter learns")
    parser.add_argument("--episodes", type=int, default=640)
    parser.add_argument("--fresh", type=int, default=160, help="episodes that are judged")
    parser.add_argument("--delta-threshold", type=float, default=0.03)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lora-epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--own-steps", type=int, default=64_000, help="of the policy whose windows are learned last")
    parser.add_argument("--own-epochs", type=int, default=3)
    parser.add_argument("--own-lr", type=float, default=1e-3)
    parser.add_argument("--lora-lr", type=float, default=2e-3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    console, folder = Console(), args.folder
    windows, other = (prepare(folder, task, args) for task in (args.task, args.other))
    base, best = folder / "base", folder / "full" / "checkpoints" / "best_model"
    adapter = folder / "lora" / "checkpoints" / "best_model"
    if not base.exists():
        print(f"a random Qwen3-VL with {tiny_init(base):,} parameters")
    if not best.exists():
        fine_tune(settings_of(args, (windows,), base, folder / "full"), console)
    if not adapter.exists():
        fine_tune(settings_of(args, (other,), best, folder / "lora", lora=True), console)
    own = own_windows(folder, args.task, args)
    lived = folder / "own" / "checkpoints" / "best_model"
    if not lived.exists():
        both = settings_of(args, (own, windows), best, folder / "own", lr=args.own_lr, epochs=args.own_epochs)
        fine_tune(both, console)
    held, others = (fresh_segments(folder, task, args) for task in (args.task, args.other))
    print("\n| model | up or down | three labels | recall + / - / ? |\n|---|--:|--:|--:|")
    print(row(f"random, {args.task}", held, base))
    print(row(f"all weights, {args.task}", held, best))
    print(row(f"the same, {args.other}", others, best))
    print(row(f"with the adapter, {args.other}", others, best, adapter))
    theirs = read_segments([own / "eval"])
    print(row(f"all weights, {args.task}, windows of a policy", theirs, best))
    print(row("the same, after others of its windows", theirs, lived))
    print(row(f"the same, {args.task}, windows of the expert", held, lived))
    speeds(best, held)
    return 0


if __name__ == "__main__":
    sys.exit(main())
