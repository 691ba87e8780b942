"""A driver of test_two_nodes: teleoperation with the arm's twin on one node and its reward model on the other."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
from tests.runtime.two_nodes import CONFIG

from referee.collect.teleoperation import Teleoperation
from referee.config import load
from referee.episodes import EpisodeStore
from referee.models import Artifact
from referee.rewards import RewardManager, RewardOptions

TWIN = ["robot.driver=twin", "robot.realtime=false", "runner.policy=random", "env.eval.cameras=[front,side]",
        "env.eval.max_episode_steps=5", "env.eval.data_collection.enabled=true", "reward.late_seconds=30",
        "reward.standalone_realworld=false", "runner.max_steps=12"]  # fmt: skip


def main(address: str, token: str, model: str, folder: str) -> None:
    lines = [*CONFIG, f"cluster.address={address}", f"cluster.token_path={token}", f"reward.model.model_path={model}"]
    numbers, probabilities = [], []
    with Teleoperation(load("realworld_teleop", [*TWIN, *lines]), Path(folder) / "teleop") as run:
        groups = (run.arm, run.judge)
        saw = {"places": [run.cluster.nodes[group.ranks[0].node].address for group in groups]}
        (pid,) = run.judge.pid().wait()
        for shown, latency in run.steps():
            assert latency is not None
            numbers.append(shown.number)
            probabilities.append(shown.probability)
            if shown.number == 3:  # the next frame is asked about again, of the judge that takes its place
                os.kill(pid, signal.SIGKILL)
        saw["replaced"] = run.judge.pid().wait()[0] != pid
    manager = RewardManager(Artifact.open(model), RewardOptions(reward_mode="per_step"))
    episodes = list(EpisodeStore(Path(folder) / "teleop" / "collected_data"))
    frames = {
        name: np.concatenate([each.observations[name][1:] for each in episodes])
        for name in ("main_images", "extra_view_images")
    }
    said = manager.judge(frames, cameras=("front", "side")).probability
    assert said is not None
    apart = np.abs(said - np.array(probabilities)).tolist()
    print(json.dumps({**saw, "numbers": numbers, "apart": apart, "recorded": [len(each) for each in episodes]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
