"""Prints where the time of a PPO iteration goes, by part, as shares of the whole."""

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from referee.config import load
from referee.learn.trainer import Trainer


class Stopwatch:
    """Wraps methods so that the time spent in them, without that of wrapped ones inside, is added up."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside: list[float] = []

    def wrap(self, owner: Any, method: str, name: str) -> None:
        """Time every call of `owner.method` under `name`."""
        inner: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inside.append(0.0)
            start = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                spent = time.perf_counter() - start
                self.seconds[name] += spent - self._inside.pop()
                if self._inside:
                    self._inside[-1] += spent

        setattr(owner, method, timed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="PickCube")
    parser.add_argument("--iterations", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run = Trainer(load("panda_ppo_mlp", [f"env.train.task={args.task}"]).config, Path(folder))
        run.warm_start(Console(quiet=True))
        for _ in range(5):
            run.iterate()
        watch, env, learner = Stopwatch(), run.env, run.learner
        watch.wrap(env._sim._batch, "step", "physics, in C")  # type: ignore[attr-defined]
        watch.wrap(env._sim, "hand_target", "inverse kinematics")  # type: ignore[attr-defined]
        watch.wrap(env, "step", "truth, reward, observation, resets")
        watch.wrap(run.policy, "act", "acting")
        watch.wrap(run.source.collector, "collect", "episode counts, storing")
        watch.wrap(learner, "prepare", "values, densities, advantages")
        watch.wrap(learner, "backward", "loss and its gradient")
        watch.wrap(learner.optimizer, "step", "optimiser")
        watch.wrap(learner, "update", "shuffling, clipping, metrics")
        start = time.perf_counter()
        for _ in range(args.iterations):
            run.iterate()
        total = time.perf_counter() - start
        run.close()
    samples = args.iterations * run.rollout.steps * run.rollout.num_envs
    print(f"{args.task}: {samples / total:,.0f} steps/s, {1e3 * total / args.iterations:.0f} ms per iteration\n")
    print("| part | ms per iteration | share |\n|---|---:|---:|")
    watch.seconds["everything else"] = total - sum(watch.seconds.values())
    for name, seconds in sorted(watch.seconds.items(), key=lambda item: -item[1]):
        print(f"| {name} | {1e3 * seconds / args.iterations:.1f} | {100 * seconds / total:.1f} % |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
