"""Prints what a policy learns from a Qwen3-VL that began as random numbers here: the whole chain, without a download.

Record a hand that strolls through all of the workspace, at any speed, towards the goal and away from it; cut windows of
5 to 31 states out of that, of which the first and the last frame are shown; teach a tiny Qwen3-VL their trends, every
other window played backwards; then let weak policies go on, paid by that model's word alone, which is asked both ways.
No policy is recorded to teach it: one of yet another seed only tells how well the model knows windows of a policy.
`history_reward.py` pays the policies, with other rewards beside it.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from referee import cpu
from vlm_trend import SHOWN, live, row

cpu.cap_if_needed()

from referee.config.datasets import WindowConfig  # noqa: E402
from referee.config.runner import TrainVLMRunner  # noqa: E402
from referee.config.schema import DataCollectionConfig, PandaEnvConfig  # noqa: E402 - after the cap
from referee.config.vlm import (  # noqa: E402
    ParamConfig,
    VLMActorConfig,
    VLMDataConfig,
    VLMOptimConfig,
    VLMTrainedModelConfig,
)
from referee.datasets.source import open_source  # noqa: E402
from referee.datasets.windows import build_windows  # noqa: E402
from referee.envs.panda.env import PandaVectorEnv  # noqa: E402
from referee.envs.panda.experts import EXPERTS  # noqa: E402
from referee.learn.environments import make_env  # noqa: E402
from referee.learn.roll_out import roll_out  # noqa: E402
from referee.models.vlm.tiny import TinyOptions, tiny_init  # noqa: E402
from referee.training.vlm.segments import read_segments  # noqa: E402
from referee.training.vlm.settings import FineTuning  # noqa: E402
from referee.training.vlm.sft import fine_tune  # noqa: E402

DELTA = 0.01
"""Of progress, from which a window is a trend. Small: a slow retreat that is called unclear would cost nothing, and
rushing back would pay, again and again."""
NUM_ENVS, STROLL_SEED, FRESH_SEED, FRESH, POLICY_SEED, POLICY_STEPS = 64, 7, 1_007, 64, 5, 24_000
CUTS = {5: 20, 9: 7, 17: 7, 31: 7}
"""States of a window: how many of an episode. What comes closer is plain to see over half an episode, and hardly over a
fifth of a second."""
TOWARDS, AWAY, PLACE, DRIFT = range(4)


class Stroller:
    """For 2 to 12 steps at a time: with the expert, straight back, to any place of the workspace, or along a line; at a
    speed of its own, with a hand more or less unsteady, and the gripper at times anyhow. So all places are seen, both
    ways."""

    def __init__(self, env: PandaVectorEnv, seed: int) -> None:
        self._env, self._random = env, np.random.default_rng(seed)
        count = env.num_envs
        self._left, self._mode = np.zeros(count, int), np.zeros(count, int)
        self._speed, self._gripper, self._careless = np.ones((count, 1)), np.zeros(count), np.zeros(count, bool)
        self._way, self._place = np.zeros((count, 3)), np.zeros((count, 3))

    def __call__(self) -> np.ndarray:
        """The next actions f32[n,4]."""
        world, random = self._env.world(), self._random
        self._choose(self._left <= 0)
        self._left -= 1
        target, gripper = EXPERTS[self._env.task.name](world)
        step = target - world.tcp
        back = -step / np.maximum(np.linalg.norm(step, axis=1, keepdims=True), 1e-3)
        wanted = np.choose(self._mode[:, None], [step, back, self._place - world.tcp, self._way])
        actions = self._env.hand_actions(wanted, np.where(self._careless, self._gripper, gripper)).astype(np.float64)
        move = actions[:, :3]
        move *= self._speed
        move += random.choice([0.05, 0.2, 0.4], (len(move), 1)) * random.standard_normal(move.shape)
        return np.clip(actions, -1.0, 1.0).astype(np.float32)

    def _choose(self, new: np.ndarray) -> None:
        """What to do next, where the last thing is done."""
        random, count = self._random, int(new.sum())
        self._left[new] = random.integers(2, 13, count)
        self._mode[new] = random.choice((TOWARDS, AWAY, PLACE, DRIFT), count, p=(0.4, 0.2, 0.2, 0.2))
        self._speed[new, 0] = random.choice([0.15, 0.3, 0.6, 1.0], count)
        self._gripper[new] = random.uniform(-1, 1, count)
        self._careless[new] = random.random(count) < 0.3
        self._way[new] = random.standard_normal((count, 3))
        low, high = self._env.task.low, self._env.task.high
        self._place[new] = random.uniform(low, high, (count, 3))


def strolls(folder: Path, task: str, episodes: int, seed: int) -> Path:
    """Recorded, if they are not there."""
    if folder.exists():
        return folder
    config = PandaEnvConfig(task=task, num_envs=NUM_ENVS, data_collection=DataCollectionConfig(enabled=True))
    env = make_env(config, folder, "stroller")
    world = env.unwrapped
    assert isinstance(world, PandaVectorEnv)
    roll_out(env, Stroller(world, seed), episodes, seed=seed)
    env.close()
    return folder


def cut(episodes: Path, size: int, samples: int) -> tuple[Path, Path]:
    """All windows of one size, as common as they are: a recording is learned from as a whole, or not at all."""
    place = episodes / f"windows_{size}"
    if not place.exists():
        options = WindowConfig(
            window_size=size, keep_frames=2, num_samples_per_episode=samples, delta_threshold=DELTA, balance=False,
            val_split=0.02,
        )  # fmt: skip
        build_windows(open_source(episodes / "collected_data"), place, options)
    return place / "train", place / "eval"


def teach(windows: list[Path], fresh: tuple[Path, ...], folder: Path, options: argparse.Namespace) -> Path:
    """The model, made and taught; windows of strolls that it does not learn from choose its weights."""
    base, best = folder / "base", folder / "taught" / "checkpoints" / "best_model"
    if not base.exists():
        print(f"a random Qwen3-VL with {tiny_init(base, TinyOptions(vision_depth=2, patch=8)):,} parameters")
    if not best.exists():
        began = time.perf_counter()
        fine_tune(
            FineTuning(
                output=folder / "taught",
                data=VLMDataConfig(
                    train_data_paths=tuple(map(str, windows)), val_data_paths=tuple(map(str, fresh)), video_nframes=2,
                    input_builder_params={name: ParamConfig(value=value) for name, value in SHOWN.items()},
                    max_val_windows=900,
                ),
                actor=VLMActorConfig(
                    model=VLMTrainedModelConfig(model_path=str(base), is_lora=False),
                    optim=VLMOptimConfig(lr=1.5e-3, weight_decay=0.05, warmup_ratio=0.03),
                    global_batch_size=64, micro_batch_size=64 // options.processes, eval_batch_size=64,
                    random_reverse=True, num_processes=options.processes, num_threads=1,
                ),
                runner=TrainVLMRunner(recipe="train_vlm", max_epochs=options.epochs),
            ),
            Console(),
        )  # fmt: skip
        print(f"taught in {(time.perf_counter() - began) / 60:.1f} minutes")
    return best


def main() -> int:
    """What lies in the folder is not made again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="Reach")
    parser.add_argument("--episodes", type=int, default=1536, help="of strolling")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2, help="that teach")
    parser.add_argument("--folder", type=Path, default=Path(".bench/history_chain"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    task, folder = options.task, options.folder
    learned = strolls(folder / "strolls", task, options.episodes, STROLL_SEED)
    fresh = cut(strolls(folder / "strolls_fresh", task, FRESH, FRESH_SEED), 5, 15)
    windows = [part for size, samples in CUTS.items() for part in cut(learned, size, samples)]
    best = teach(windows, fresh, folder, options)
    if not (folder / f"live_{POLICY_SEED}").exists():
        live(folder, task, POLICY_STEPS, seed=POLICY_SEED)
    print("\n| windows of 5 states of | up or down | three labels | recall + / - / ? |\n|---|--:|--:|--:|")
    print(row("other strolls", read_segments(fresh), best))
    print(row("a policy that learns", read_segments(cut(folder / f"live_{POLICY_SEED}", 5, 4)), best))
    print(f"\nnow: python benchmarks/history_reward.py --task {task} --seed 1 --steps 48000 --eval-interval 3 "
          f"--model {best} --arms history oracle env none")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
