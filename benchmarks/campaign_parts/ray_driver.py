"""A PPO run under Ray that says after each iteration how many rewards the model has given; the campaign attacks it.

Run as `python -m campaign_parts.ray_driver FOLDER ITERATIONS SETTING …`; goes on from a checkpoint that is there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from referee import cpu

cpu.cap_if_needed()

from referee.config import load  # noqa: E402 - after the cap
from referee.demo.ablation_runs import QUIET  # noqa: E402
from referee.errors import RefereeError  # noqa: E402
from referee.learn.checks import check  # noqa: E402
from referee.learn.trainer import Trainer  # noqa: E402

SMALL = [
    "env.train.num_envs=4", "env.eval.num_envs=2", "env.train.max_episode_steps=5", "algorithm.rollout_steps=10",
    "actor.global_batch_size=20", "actor.model.hidden_dims=[8]", "algorithm.update_epochs=1", "actor.num_threads=1",
    "runner.eval_episodes=2", "env.train.num_threads=1", "env.eval.num_threads=1", "env.eval.max_episode_steps=5",
    "reward.use_reward_model=true", "reward.reward_mode=per_step", "env.train.task=Reach", "env.eval.task=Reach",
    "cluster.backend=ray", "cluster.max_restarts=1000",
]  # fmt: skip
UNPAID = -12345.0


def main(folder: Path, iterations: int, *settings: str) -> int:
    config = load("panda_ppo_mlp", [*SMALL, *settings]).config
    check(config)
    run: Any = Trainer(config, folder)
    try:
        saved = sorted((folder / "checkpoints").glob("step_*"), key=lambda path: int(path.name[5:]))
        if saved:
            run.resume(saved[-1])
        else:
            run.warm_start(QUIET)
        give = run.relabel
        workers: list[int] = []

        def counted(batch: Any) -> None:
            """A reward that is not given leaves its mark; one that is given twice is a worker's second call."""
            workers.append(batch.worker)
            batch.rollout.rewards[:] = UNPAID
            give(batch)

        run.relabel = counted
        for iteration in range(iterations):
            print("begins", iteration, flush=True)
            workers.clear()
            run.iterate()
            rewards = run.rollout.rewards
            given = np.isfinite(rewards) & (np.abs(rewards) < 1000)
            run.save()
            print("iteration", iteration, int(given.sum()), rewards.size, len(workers) - len(set(workers)), flush=True)
    finally:
        run.close()
    print("done", flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
    except RefereeError as error:
        print(f"referee: {error}", flush=True)
        sys.exit(2)
