"""Ray's own process on this machine dies: one line and exit code 1 at once, and a run to resume."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.runtime.processes import alive, all_gone, descendants

from referee.rl import checkpoint

GIVEN = [
    "env.train.num_envs=4", "env.eval.num_envs=2", "env.train.task=Reach", "env.eval.task=Reach",
    "algorithm.rollout_steps=16", "actor.global_batch_size=64", "runner.eval_episodes=2", "runner.save_interval=1",
    "runner.eval_interval=1000000", "runner.film=false", "runner.logger.logger_backends=[]",
]  # fmt: skip


def command(folder: Path, *more: str) -> list[str]:
    words = [f"runner.logger.log_path={folder}", *GIVEN, *more]
    return [sys.executable, "-m", "referee.cli", "run", "panda_ppo_mlp", *words]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_dead_raylet_is_one_line_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    folder = tmp_path / "run"
    given = command(folder, "cluster.backend=ray", "runner.max_steps=10000000")
    run = subprocess.Popen(given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    pids: set[int] = set()
    try:
        end = time.monotonic() + 120
        while len(list((folder / "checkpoints").glob("step_*"))) < 1:
            assert run.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        pids = descendants(run.pid)
        (raylet,) = [pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() == "raylet"]
        children = {pid for pid in pids if f"PPid:\t{run.pid}\n" in Path(f"/proc/{pid}/status").read_text()}
        start = time.monotonic()
        os.kill(raylet, signal.SIGKILL)
        _, errors = run.communicate(timeout=60)
        assert time.monotonic() - start < 20
        assert run.returncode == 1 and errors.count("\n") == 1 and f"(raylet, {raylet}) died" in errors, errors
        assert len(children) >= 2 and all_gone(children)  # the raylet's own helpers end by themselves, in a minute
    finally:
        run.kill()
        run.wait()
        for pid in alive(pids):
            os.kill(pid, signal.SIGKILL)
    steps = checkpoint.load(checkpoint.find(folder)).meta["steps"]
    more = command(folder, f"runner.resume_dir={folder}", f"runner.max_steps={steps + 64}")
    done = subprocess.run(more, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and f"resuming at step {steps:,}" in done.stdout, done.stderr
