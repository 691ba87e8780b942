"""Prints what a gate over time, and judging only the ends, bring on the states of policies that a model has trained.

For each policy that `benchmarks/refinement.py` trained under a frozen model that judged the ends of episodes: 128 fresh
episodes with the noise of exploration, every state judged. "Paid in vain" is the share of paid states that are no
success; "missed" the share of true successes that are not paid; the same for the last states alone, which is what
`reward.hold_terminal` falls back to.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

from referee import cpu

cpu.cap_if_needed()

from referee.models import Artifact  # noqa: E402 - after the cap
from referee.recipes.trained import bring_back  # noqa: E402
from referee.rewards import Gate  # noqa: E402

GATES = ((1, 1), (2, 3), (3, 5), (5, 8))
NUM_ENVS, EPISODES = 64, 128


def states(artifact: Artifact, run: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probability, truth and whether it is an episode's last, f32[T,N] and bool[T,N], of states that steps led to."""
    env, player = bring_back(run, NUM_ENVS, noise_seed=3)
    observation, _ = env.reset(seed=4_000_000)
    said, true, last = [], [], []
    for _ in range(env.max_episode_steps * EPISODES // NUM_ENVS):
        player.see(observation)
        observation, _, terminated, truncated, info = env.step(player())
        done = terminated | truncated
        pictures = dict(env.render_cameras(cameras=("front", "side")))
        success = info["success"].copy()
        if done.any():
            ids = np.flatnonzero(done)
            for name, images in env.render_cameras(ids, final=True, cameras=("front", "side")).items():
                pictures[name] = pictures[name].copy()
                pictures[name][ids] = images
            success[ids] = info["final_info"]["success"][ids]
        said.append(artifact.score(pictures, cameras=("front", "side")).probability)
        true.append(success)
        last.append(done)
    env.close()
    return np.stack(said), np.stack(true), np.stack(last)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(".bench/refinement"))
    parser.add_argument("--runs", nargs="+", default=["PickCube_0", "PushCube_0", "PushCube_1", "PushCube_2"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| policy | judged | paid in vain | missed |\n|---|---|--:|--:|")
    for name in args.runs:
        artifact = Artifact.load(args.folder / f"{name.rsplit('_', 1)[0]}_reward" / "checkpoints" / "best_model")
        said, true, last = states(artifact, args.folder / f"{name}_terminal_frozen")
        began = np.zeros_like(last)
        began[1:] = last[:-1]
        for k, n in GATES:
            fires = Gate(NUM_ENVS, k, n).steps(said >= artifact.calibration.threshold_in("per_step"), began)
            print_row(name, f"every state, {k} of {n}", fires, true)
        fires = said >= artifact.calibration.threshold_in("terminal")
        print_row(name, "last states", fires[last], true[last])
    return 0


def print_row(name: str, judged: str, fires: np.ndarray, true: np.ndarray) -> None:
    vain, missed = (fires & ~true).sum() / max(1, fires.sum()), (true & ~fires).sum() / max(1, true.sum())
    print(f"| {name.replace('_', ', seed ')} | {judged} | {vain:.1%} | {missed:.1%} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
