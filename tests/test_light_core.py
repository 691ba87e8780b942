"""The core without the embedded simulation: no mujoco, or another package's old one, and no tensorboard."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WORLDS = Path(__file__).parent / "envs"
FIX = "referee-rl[sim]"
HIDDEN = 'raise ImportError("hidden by a test")\n'
OLD = '__version__ = "3.3.0"\n'
POLICY = """
import numpy as np

def towards(observation):
    states = observation["states"]
    return np.concatenate([np.clip((states[:, 5:7] - states[:, :2]) / 0.25, -1, 1), np.zeros((len(states), 1))], axis=1)
"""
RUN = """
import contextlib, io, json, sys
sys.modules["tensorboard"] = None  # neither imported nor found
from referee.cli import main

results = []
for words in json.load(open("words.json")):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as left:
            code = left.code
    results.append([code, out.getvalue(), err.getvalue()])
assert "torch.utils.tensorboard" not in sys.modules
json.dump(results, open("results.json", "w"))
"""
POINT = "own_worlds:PointReach-v0"
ENV = ["env.eval.num_envs=4", "env.eval.num_processes=1", "env.eval.image_size=24"]
REWARD = "reward/checkpoints/best_model"


def record(seed: int, noise: float) -> list[str]:
    return ["run", "gym_collect", f"env.eval.id={POINT}", "runner.policy=my_policy:towards", "runner.film=false", *ENV,
            "runner.num_episodes=12", f"runner.seed={seed}", f"runner.expert_noise={noise}",
            "env.eval.data_collection.save_dir=episodes", f"runner.logger.log_path=log{seed}"]  # fmt: skip


WORKS = [
    ["config", "list"],
    ["config", "show", "panda_ppo_mlp"],
    record(0, 0.3),
    record(1, 4.0),
    ["episodes", "ls", "episodes"],
    ["episodes", "view", "episodes", "--out", "strip.png"],
    ["episodes", "check", "episodes"],
    ["episodes", "convert", "episodes", "pickled", "--format", "pickle"],
    ["train", "episodes", "--out", "reward", "runner.max_epochs=1", "actor.model.arch=resnet10", "actor.model.width=8",
     "actor.model.hidden_dim=8"],
    ["audit", REWARD, "episodes", "--skip-training-episodes"],
    ["score", REWARD, "episodes"],
    ["compare", REWARD, REWARD, "episodes"],
    ["run", "gym_ppo_mlp", f"env.train.id={POINT}", "env.train.num_envs=4", "env.train.num_processes=1",
     "algorithm.rollout_steps=8", "actor.global_batch_size=16", "actor.model.hidden_dims=[8]", "runner.max_steps=64",
     "runner.eval_episodes=4", "runner.film=false", "runner.logger.log_path=policy"],
    ["eval", "policy", "--episodes", "4"],
]  # fmt: skip
REFUSED = [
    ["play", "--task", "Reach", "--policy", "random"],
    ["envs"],
    ["run", "panda_expert"],
    ["run", "panda_ppo_mlp", "runner.max_steps=64"],
    ["demo", "--out", "story"],
]
TWIN = ["robot", "check", "realworld_collect_data", "robot.driver=twin"]


def play_through(folder: Path, mujoco: str, commands: list[list[str]]) -> list[list[Any]]:
    """Exit code, output and errors of each command, in one process that does not find the simulator's packages."""
    hidden = folder / "hidden"
    hidden.mkdir()
    (hidden / "mujoco.py").write_text(mujoco)
    (folder / "my_policy.py").write_text(POLICY)
    (folder / "words.json").write_text(json.dumps(commands))
    path = [str(hidden), str(WORLDS), str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads((folder / "results.json").read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("mujoco", [HIDDEN, OLD], ids=["none", "old"])
def test_what_needs_no_simulation_works_without_it(tmp_path: Path, mujoco: str) -> None:
    works = WORKS if mujoco is HIDDEN else WORKS[:5]  # the rest is alike
    results = play_through(tmp_path, mujoco, [*works, *REFUSED, TWIN])
    for words, (code, out, err) in zip(works, results, strict=False):
        assert code == 0, (words, out[-500:], err)
        assert "mujoco" not in err, (words, err)
    assert "24" in results[4][1]
    refused = results[len(works) : -1]
    for words, (code, _, err) in zip(REFUSED, refused, strict=True):
        assert code == 2 and FIX in err and err.startswith("referee: ") and err.count("\n") == 1, (words, code, err)
        assert ("3.3.0" in err) == (mujoco is OLD), err
    code, out, err = results[-1]
    assert code == 2 and FIX in out and not err and out.count("✗") == 1, (out, err)
    assert not (tmp_path / "film.gif").exists()
