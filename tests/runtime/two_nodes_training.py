"""A driver of test_two_nodes: PPO with its environments on one node and its reward model on the other."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

from tests.runtime.two_nodes import CONFIG

from referee.config import load
from referee.demo.ablation_runs import QUIET
from referee.episodes import EpisodeStore
from referee.learn.source import WorkerSource
from referee.learn.trainer import Trainer

SMALL = [
    "env.train.num_envs=4", "env.eval.num_envs=2", "env.train.max_episode_steps=5", "algorithm.rollout_steps=10",
    "actor.global_batch_size=20", "actor.model.hidden_dims=[8]", "algorithm.update_epochs=1", "actor.num_threads=1",
    "runner.eval_episodes=2", "env.train.num_threads=1", "env.eval.num_threads=1", "env.eval.max_episode_steps=5",
    "reward.use_reward_model=true", "reward.reward_mode=per_step", "env.train.data_collection.enabled=true",
]  # fmt: skip


def main(address: str, token: str, model: str, folder: str) -> None:
    lines = [*CONFIG, f"cluster.address={address}", f"cluster.token_path={token}", f"reward.model.model_path={model}",
             f"env.train.data_collection.save_dir={folder}/episodes"]  # fmt: skip
    run = Trainer(load("panda_ppo_mlp", [*SMALL, *lines]).config, Path(folder))
    paid = 0
    try:
        run.warm_start(QUIET)
        assert isinstance(run.source, WorkerSource) and run.source.scorers is not None
        (pid,) = run.source.scorers.pid().wait()
        for iteration in range(5):
            if iteration == 2:  # while the environments step, or while it judges
                threading.Timer(0.03, os.kill, (pid, signal.SIGKILL)).start()
            run.iterate()
            paid += int(run.rollout.rewards.size)
        (again,) = run.source.scorers.pid().wait()
        addresses = [
            run.source.cluster.nodes[group.ranks[0].node].address for group in (run.source.group, run.source.scorers)
        ]
        saw = {"steps": run.steps, "paid": paid, "replaced": pid != again, "places": addresses}
    finally:
        run.close()
    saw["episodes"] = len(EpisodeStore(Path(folder) / "episodes"))
    print(json.dumps(saw))


if __name__ == "__main__":
    main(*sys.argv[1:])
