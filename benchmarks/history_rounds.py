"""The chain for tasks in which something is grasped: recordings with contact, then rounds on a policy of its own.

A trend model that only knows strolls misreads the windows of a policy. So it learns from strolls that begin in the
middle of the task, and from policies that the dense reward improves; then, in rounds, a policy is trained on the model,
recorded, and learned from. Labels of training windows come from the simulation's progress; the reward of the policies
that are trained on the model never does. The seeds of `history_reward.py` are none of those below.
"""

import argparse
import time
from pathlib import Path

import numpy as np

from history_reward import Oracle, config_of
from history_strolls import strolls
from history_teach import SIZE, agreement, cut, sample, teach, written
from referee.demo.ablation_runs import QUIET, weak_config, weak_policy
from referee.learn.trainer import Trainer
from vlm_trend import SHOWN, WEAK, live

STROLLS, STROLL_SEED, GUIDED = 1024, 7, 45
LIVE_SEED, ORACLE_SEED, ROUND_SEED = 11, 5, 11
"""Of the policy that the dense reward improves; of the one that the oracle improves, which only measures; and of the
one that rounds train and learn from."""
LIVE_STEPS, ORACLE_STEPS, ROUND_STEPS = 48_000, 64_000, 19_200
CUTS = {"strolls": {5: 14, 9: 8, 17: 6}, "live": {5: 20, 9: 8}, "round": {5: 24}}
"""States of a window: how many of an episode."""
CLOSE = {**SHOWN, "crop": "0.125,0.1875,0.875,0.9375", "question": "Trend? positive, negative or unclear"}
"""The part of both views in which cube, ball and fingers are, and few words: half the work per window."""
PIXELS = 48


def trained(folder: Path, start: Path, task: str, seed: int, steps: int, model: Path | None) -> Path:
    """A weak policy goes on for `steps`, trained on the model's trends (None: on the oracle's), and is recorded."""
    if (folder / "done").exists():
        return folder
    if not start.exists():
        weak_policy(weak_config(task, seed), start, success=WEAK).close()
    options = argparse.Namespace(
        task=task, seed=seed, steps=steps, eval_interval=1000, lora=None, model=model,
        overrides=["env.train.data_collection.enabled=true"],
    )  # fmt: skip
    kind = Oracle if model is None else Trainer
    run = kind(config_of("oracle" if model is None else "history", start, options), folder)
    run.warm_start(QUIET)
    began, course = time.perf_counter(), []
    while not run.finished():
        course.append(run.iterate())
    success = [each.get("env/success_at_end", np.nan) for each in course]
    minutes = (time.perf_counter() - began) / 60
    print(f"{folder.name}: {run.steps:,} steps, {minutes:.1f} minutes, success of its own episodes, noise included: "
          + " ".join(f"{100 * each:.0f}" for each in success), flush=True)  # fmt: skip
    run.close()
    (folder / "done").touch()
    return folder


def contact_chain(folder: Path, task: str, rounds: int, epochs: int, processes: int) -> Path:
    """The taught model; what lies in the folder is not made again."""
    live_run = folder / f"live_{LIVE_SEED}"
    if not live_run.exists():
        live(folder, task, LIVE_STEPS, seed=LIVE_SEED)
    recordings = {
        "strolls": strolls(folder / "strolls", task, STROLLS, STROLL_SEED, guided=GUIDED),
        "live": live_run,
    }
    oracle = trained(folder / f"oracle_{ORACLE_SEED}", folder / f"start_{ORACLE_SEED}", task, ORACLE_SEED,
                     ORACLE_STEPS, None)  # fmt: skip
    parts = [cut(recordings[name], size, samples) for name in recordings for size, samples in CUTS[name].items()]
    learned, held = [train for train, _ in parts], [cut(live_run, SIZE, CUTS["live"][SIZE])[1]]
    best = teach(learned, held, folder, shown=CLOSE, size=PIXELS, epochs=epochs, processes=processes)
    measured = sample(oracle, 1200)
    print("\n| model | windows of a policy that the oracle improves | sign of a trend told right |\n|---|---|--:|")
    print("\n".join(agreement("taught", measured, best)), flush=True)
    own = [cut(live_run, SIZE, CUTS["live"][SIZE])[0]]
    for number in range(rounds):
        place = folder / f"round_{number}"
        run = trained(place, folder / f"start_{ROUND_SEED}", task, ROUND_SEED + 100 * number, ROUND_STEPS, best)
        print("\n".join(agreement("before, its own policy", sample(run, 600), best)), flush=True)
        train, val = cut(run, SIZE, CUTS["round"][SIZE], val_split=0.1)
        own, held = [*own, train], [*held, val]
        best = teach(own, held, place, shown=CLOSE, base=best, lr=7e-4, epochs=1, processes=processes)
        print("\n".join(agreement(f"round {number + 1}", measured, best)), flush=True)
    print("\n| it writes | which is read as | reward | windows | of them scored alike |\n|---|---|--:|--:|--:|")
    print("\n".join(written(measured, best)), flush=True)
    return best
