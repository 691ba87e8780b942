"""Prints what a policy learns from a Qwen3-VL that began as random numbers here: the whole chain, without a download.

Record a hand that strolls through all of the workspace, at any speed, towards the goal and away from it; cut windows of
5 to 31 states out of that, of which the first and the last frame are shown; teach a tiny Qwen3-VL their trends, every
other window played backwards; then let weak policies go on, paid by that model's word alone, which is asked both ways.
No policy is recorded to teach it: one of yet another seed only tells how well the model knows windows of a policy.
`history_reward.py` pays the policies, with other rewards beside it.
"""

import argparse
import sys
from pathlib import Path

import torch

from referee import cpu

cpu.cap_if_needed()

from history_rounds import contact_chain  # noqa: E402 - after the cap
from history_strolls import strolls  # noqa: E402
from history_teach import cut, teach  # noqa: E402
from referee.training.vlm.segments import read_segments  # noqa: E402
from vlm_trend import SHOWN, live, row  # noqa: E402

STROLL_SEED, FRESH_SEED, FRESH, POLICY_SEED, POLICY_STEPS = 7, 1_007, 64, 5, 24_000
CUTS = {5: 20, 9: 7, 17: 7, 31: 7}
"""States of a window: how many of an episode. What comes closer is plain to see over half an episode, and hardly over a
fifth of a second."""
REWARD = (
    "python benchmarks/history_reward.py --task {task} --seed 1 --steps {steps} --eval-interval 3 --model {model} "
    "--arms history oracle env none"
)
TOUCHES = ("PickCube",)
"""Tasks that strolls alone do not teach."""


def main() -> int:
    """What lies in the folder is not made again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="Reach")
    parser.add_argument("--episodes", type=int, default=1536, help="of strolling")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2, help="of a policy's own windows, where something is grasped")
    parser.add_argument("--processes", type=int, default=2, help="that teach")
    parser.add_argument("--folder", type=Path, default=Path(".bench/history_chain"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    task, folder = options.task, options.folder
    if task in TOUCHES:
        best = contact_chain(folder, task, options.rounds, options.epochs, options.processes)
        print(f"\nnow: {REWARD.format(task=task, model=best, steps=96_000)}")
        return 0
    learned = strolls(folder / "strolls", task, options.episodes, STROLL_SEED)
    fresh = cut(strolls(folder / "strolls_fresh", task, FRESH, FRESH_SEED), 5, 15)
    windows = [part for size, samples in CUTS.items() for part in cut(learned, size, samples)]
    best = teach(windows, fresh, folder, shown=SHOWN, epochs=options.epochs, processes=options.processes)
    if not (folder / f"live_{POLICY_SEED}").exists():
        live(folder, task, POLICY_STEPS, seed=POLICY_SEED)
    print("\n| windows of 5 states of | up or down | three labels | recall + / - / ? |\n|---|--:|--:|--:|")
    print(row("other strolls", read_segments(fresh), best))
    print(row("a policy that learns", read_segments(cut(folder / f"live_{POLICY_SEED}", 5, 4)), best))
    print(f"\nnow: {REWARD.format(task=task, model=best, steps=48_000)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
