"""Two runs in one folder: the second is refused by name of the first, and a killed one lets go at once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from referee.config import load
from referee.errors import RefereeError
from referee.recipes.train_policy import train_policy
from referee.rl import checkpoint
from referee.runs import folder as rundir

TINY = [
    "env.train.num_envs=2", "env.eval.num_envs=2", "env.train.task=Reach", "env.eval.task=Reach",
    "algorithm.rollout_steps=4", "actor.global_batch_size=8", "runner.eval_episodes=2", "runner.save_interval=1",
    "runner.eval_interval=1000000", "runner.film=false",
]  # fmt: skip


def command(folder: Path, *more: str, steps: int = 10_000_000) -> list[str]:
    return [sys.executable, "-m", "referee.cli", "run", "panda_ppo_mlp", f"runner.logger.log_path={folder}",
            f"runner.max_steps={steps}", *TINY, *more]  # fmt: skip


def wait_for(path: Path, run: subprocess.Popen[str], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not list(path.parent.glob(path.name)):
        assert run.poll() is None and time.monotonic() < deadline, run.poll()
        time.sleep(0.05)


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A training that has written a checkpoint and goes on."""
    folder = tmp_path / "run"
    with (tmp_path / "out").open("w") as out:
        run = subprocess.Popen(command(folder), stdout=out, stderr=out, text=True)
    try:
        wait_for(folder / "checkpoints" / "step_*", run)
        yield folder, run
    finally:
        run.kill()
        run.wait()


@pytest.mark.slow
def test_a_second_training_is_refused_and_a_killed_one_can_be_resumed(
    endless: tuple[Path, subprocess.Popen[str]],
) -> None:
    folder, first = endless

    def second(*more: str) -> subprocess.CompletedProcess[str]:
        start = time.monotonic()
        done = subprocess.run(command(folder, *more, steps=8), capture_output=True, text=True, timeout=200, check=False)
        assert time.monotonic() - start < 60
        return done

    before = (folder / "config.yaml").read_bytes()
    for more in ([], [f"runner.resume_dir={folder}"]):
        done = second(*more)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert f"{folder} is in use by process {first.pid} on {socket.gethostname()}" in done.stderr
    first.send_signal(signal.SIGSTOP)  # Ctrl-Z: it is not dead
    assert f"process {first.pid} " in second().stderr
    first.send_signal(signal.SIGCONT)
    assert (folder / "config.yaml").read_bytes() == before and first.poll() is None
    first.kill()
    first.wait()
    steps = checkpoint.load_meta(checkpoint.find(folder))["steps"]
    done = second(f"runner.resume_dir={folder}")
    assert done.returncode == 0, done.stderr
    assert f"resuming at step {steps:,}" in done.stdout


HOLD = """
import os, sys, time
from pathlib import Path
from referee.runs import folder as rundir
rundir.lock(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    time.sleep(60)  # outlives its parent
    os._exit(0)
print(child, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_a_child_that_outlives_a_killed_run_does_not_hold_its_lock(tmp_path: Path) -> None:
    run = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    child = int(run.stdout.readline())
    try:
        with pytest.raises(RefereeError, match=f"is in use by process {run.pid} on .*: end that run, or set runner"):
            rundir.lock(tmp_path)
        run.kill()
        run.wait()
        with rundir.locked(tmp_path, fix=""):
            assert json.loads((tmp_path / rundir.LOCK).read_text())["pid"] == os.getpid()
        os.kill(child, 0)  # it lives
    finally:
        os.kill(child, signal.SIGKILL)
        run.kill()
        run.wait()
        run.stdout.close()


def test_a_run_lets_go_of_its_folder_when_it_ends(tmp_path: Path) -> None:
    values = [f"runner.logger.log_path={tmp_path / 'run'}", "runner.max_steps=8", *TINY]
    before = set(rundir._locks)
    train_policy(load("panda_ppo_mlp", values))
    assert set(rundir._locks) == before
    train_policy(load("panda_ppo_mlp", [*values, f"runner.resume_dir={tmp_path / 'run'}"]))
    assert set(rundir._locks) == before


def test_a_second_run_does_not_write_over_the_first(tmp_path: Path) -> None:
    run = tmp_path / "run"
    values = [f"runner.logger.log_path={run}", "runner.max_steps=8", *TINY]
    (run / "checkpoints").mkdir(parents=True)  # of one that was killed before it saved anything
    train_policy(load("panda_ppo_mlp", values))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(RefereeError, match=rf"holds the results of a run already: .*runner.resume_dir={run}\)"):
        train_policy(load("panda_ppo_mlp", values))
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    store = tmp_path / "store"
    (store / "episodes").mkdir(parents=True)
    with pytest.raises(RefereeError, match="holds recorded episodes"):
        train_policy(load("panda_ppo_mlp", [f"runner.logger.log_path={store}", *TINY]))


def test_a_run_that_never_began_leaves_no_folder(tmp_path: Path) -> None:
    for place in (f"log_path={tmp_path / 'a' / 'run'}", f"output_dir={tmp_path / 'logs'}"):
        values = [f"runner.logger.{place}", "runner.resume_dir=nowhere", *TINY]
        with pytest.raises(RefereeError):
            train_policy(load("panda_ppo_mlp", values))
        assert list(tmp_path.iterdir()) == []


TAKE = """
import sys
from referee.config import load
from referee.runs import folder as rundir
rundir.time.strftime = lambda form: "20261118-120000"
print(rundir.open_run(load("panda_expert", ["runner.logger.output_dir=" + sys.argv[1]])), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_runs_of_one_second_in_several_processes_have_folders_of_their_own(tmp_path: Path) -> None:
    runs = [
        subprocess.Popen([sys.executable, "-c", TAKE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         text=True)
        for _ in range(4)
    ]  # fmt: skip
    folders = [run.stdout.readline() for run in runs if run.stdout]
    for run in runs:
        run.communicate()
    assert len(set(folders)) == 4 and all(run.returncode == 0 for run in runs)


def test_a_folder_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    for place in (tmp_path / "logs", tmp_path / "logs" / "run"):
        with pytest.raises(RefereeError, match=r"cannot write to .* set runner\.logger\.log_path"):
            rundir.lock(place)
    with pytest.raises(RefereeError, match="cannot write to"):
        rundir.open_run(load("panda_expert", [f"runner.logger.output_dir={tmp_path / 'logs'}"]))
