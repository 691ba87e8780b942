"""Prints what a policy learns from a Qwen3-VL that began as random numbers here: the whole chain, without a download.

Record a wandering expert, and a policy (seed 0) that learns with the dense reward; cut windows of 5 to 31 states out of
both, of which the first and the last frame are shown; teach a tiny Qwen3-VL their trends, every other window played
backwards; then let weak policies of other seeds go on, paid by that model's word alone, which is asked both ways. The
weights are chosen on windows of a policy of yet another seed. `history_reward.py` has the rewards beside it.
"""

import argparse
import sys
import time
from pathlib import Path

import torch
from rich.console import Console

from referee import cpu
from vlm_trend import SHOWN, collect, live, row

cpu.cap_if_needed()

from referee.datasets.source import open_source  # noqa: E402 - after the cap
from referee.datasets.windows import WindowOptions, build_windows  # noqa: E402
from referee.models.vlm.qwen import QwenOptions  # noqa: E402
from referee.models.vlm.tiny import TinyOptions, tiny_init  # noqa: E402
from referee.training.vlm.options import SftOptions  # noqa: E402
from referee.training.vlm.segments import read_segments  # noqa: E402
from referee.training.vlm.sft import fine_tune  # noqa: E402

DELTA, WANDERER_SEED, TEACHER_SEED, HELD_SEED = 0.03, 7, 0, 5
SIZES = (5, 9, 17, 31)
"""States of a window. What comes closer is plain to see over half an episode, and hardly over a fifth of a second."""


def cut(episodes: Path, size: int, samples: int) -> Path:
    """Windows of one size, as common as they are; nearly all are training, the judges come from other recordings."""
    place = episodes / f"windows_{size}"
    if not place.exists():
        options = WindowOptions(
            window_size=size, keep_frames=2, num_samples_per_episode=samples, delta_threshold=DELTA, balance=False,
            val_split=0.01,
        )  # fmt: skip
        build_windows(open_source(episodes / "collected_data"), place, options)
    return place / "train"


def windows(task: str, steps: int, folder: Path) -> tuple[list[Path], Path]:
    """Those that are learned, and those of another policy, which choose the best weights."""
    wanderer, teacher, held = folder / "wanderer", folder / f"live_{TEACHER_SEED}", folder / f"live_{HELD_SEED}"
    if not wanderer.exists():
        collect(wanderer, task, 320, WANDERER_SEED)
    for place, seed, length in ((teacher, TEACHER_SEED, steps), (held, HELD_SEED, steps // 2)):
        if not place.exists():
            live(folder, task, length, seed=seed)
    learned = [cut(place, size, samples) for place, samples in ((wanderer, 15), (teacher, 10)) for size in SIZES]
    return learned, cut(held, SIZES[0], 4)


def teach(learned: list[Path], held: Path, folder: Path, options: argparse.Namespace) -> Path:
    """The model, made and taught."""
    base, best = folder / "base", folder / "taught" / "checkpoints" / "best_model"
    if not base.exists():
        print(f"a random Qwen3-VL with {tiny_init(base, TinyOptions(vision_hidden=96, vision_depth=2)):,} parameters")
    if not best.exists():
        began = time.perf_counter()
        fine_tune(
            SftOptions(
                model=QwenOptions(model_path=base), output=folder / "taught", train=tuple(learned), val=(held,),
                frames=2, builder_params=SHOWN, lora=None, lr=1.5e-3, weight_decay=0.05, warmup_ratio=0.1,
                global_batch_size=128, micro_batch_size=128 // options.processes, eval_batch_size=128,
                random_shift=1, random_reverse=True, max_epochs=options.epochs, num_processes=options.processes,
                num_threads=1,
            ),
            Console(),
        )  # fmt: skip
        print(f"taught in {(time.perf_counter() - began) / 60:.1f} minutes")
    return best


def main() -> int:
    """What lies in the folder is not made again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="Reach")
    parser.add_argument("--steps", type=int, default=48_000, help="of the policy that is recorded")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--processes", type=int, default=2, help="that teach")
    parser.add_argument("--folder", type=Path, default=Path(".bench/history_chain"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    learned, held = windows(options.task, options.steps, options.folder)
    best = teach(learned, held, options.folder, options)
    print("\n| model | up or down | three labels | recall + / - / ? |\n|---|--:|--:|--:|")
    print(row(f"{options.task}, windows of another policy", read_segments([held]), best))
    print(f"\nnow: python benchmarks/history_reward.py --task {options.task} --seed 1 --steps 48000 --model {best} "
          "--arms history oracle env none")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
