"""Crews and judges on a cluster: the same run as in one process; two crews; workers that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.recipes.test_background import BACKGROUND
from tests.recipes.test_off_policy import SMALL as OFF_POLICY
from tests.recipes.test_off_policy import shown
from tests.runtime.processes import all_gone, descendants

from referee.config import load
from referee.demo.ablation_runs import QUIET
from referee.errors import ConfigError
from referee.learn.asynchronous import AsyncSource
from referee.learn.checks import check
from referee.learn.source import WorkerSource
from referee.learn.trainer import Trainer
from referee.refine.retrain import Compared
from referee.rewards import RolloutFrames
from referee.rl.checkpoint import CheckpointError
from referee.rl.replay import STEP

SMALL = [
    "env.train.num_envs=4", "env.eval.num_envs=2", "env.train.max_episode_steps=5", "algorithm.rollout_steps=12",
    "actor.global_batch_size=24", "actor.model.hidden_dims=[8]", "algorithm.update_epochs=2", "actor.num_threads=1",
    "runner.eval_episodes=4", "env.train.num_threads=1", "env.eval.num_threads=1", "env.eval.max_episode_steps=5",
]  # fmt: skip
HERE = "cluster.component_placement={env: 0-0, reward: 0-0}"
TWO = "cluster.component_placement={env: 0-1, reward: 0-0}"
RAY, PROCESS = "cluster.backend=ray", "cluster.backend=process"
REFINED = ["reward.refine.enabled=true", "reward.refine.interval=1", "reward.refine.ask=12", "reward.refine.steps=2",
           "reward.refine.budget=60"]  # fmt: skip
GOAL = slice(-6, -3)
"""Where a state of Reach tells the goal, which stays the same in an episode."""
__all__ = ["shown"]
MODES = [(), ("reward.reward_mode=per_step",), ("reward.terminate_on=model", "reward.reward_mode=per_step")]


@contextmanager
def training(folder: Path, model: Path | None, *more: str) -> Iterator[Trainer]:
    lines = [] if model is None else ["reward.use_reward_model=true", f"reward.model.model_path={model}"]
    config = load("panda_ppo_mlp", [*SMALL, *lines, *more]).config
    check(config)
    run = Trainer(config, folder)
    try:
        yield run
    finally:
        run.close()


Lived = tuple[list[dict[str, float]], dict[str, torch.Tensor]]
"""What was told of each iteration, and the weights at the end."""


def lived(run: Trainer, iterations: int) -> Lived:
    rows = [run.iterate() for _ in range(iterations)]
    told = [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]
    return told, {name: value.clone() for name, value in run.policy.state_dict().items()}


def same(ours: Lived, theirs: Lived) -> None:
    for mine, other in zip(ours[0], theirs[0], strict=True):
        assert mine.keys() == other.keys()
        assert all(mine[name] == other[name] or mine[name] != mine[name] for name in mine)
    assert all(torch.equal(ours[1][name], theirs[1][name]) for name in theirs[1])


@pytest.mark.parametrize("mode", MODES)
def test_a_placed_run_is_the_same_run(tmp_path: Path, refinable: Path, mode: tuple[str, ...]) -> None:
    with training(tmp_path / "a", refinable, *mode) as alone:
        alone.warm_start(QUIET)
        wanted = lived(alone, 3)
    with training(tmp_path / "b", refinable, *mode, HERE) as placed:
        assert isinstance(placed.source, WorkerSource)
        placed.warm_start(QUIET)
        same(lived(placed, 3), wanted)


@pytest.mark.parametrize("mode", MODES)
def test_two_crews_share_the_environments(tmp_path: Path, refinable: Path, mode: tuple[str, ...]) -> None:
    with training(tmp_path / "a", refinable) as alone, training(tmp_path / "b", refinable, *mode, TWO) as both:
        for run in (alone, both):
            run.warm_start(QUIET)
        first = alone.source.env.observation["states"].copy()
        numbers = both.iterate()
        assert np.array_equal(both.rollout.observations["states"][0], first)  # the same starts
        assert both.rollout.num_envs == 4 and both.steps == 48
        assert {final.env for final in both.rollout.finals} == {0, 1, 2, 3}
        assert numbers["reward/version"] == 0 and 0 <= numbers["reward/model_success"] <= 1
        saved = both.save()
        wanted = lived(both, 2)
    with training(tmp_path / "b", refinable, *mode, TWO) as again:
        assert again.resume(saved) == 48
        same(lived(again, 2), wanted)
    four = ("env.train.num_envs=4", "cluster.component_placement={env: 0-3, reward: 0-0}")
    with training(tmp_path / "c", refinable, *four) as more, pytest.raises(CheckpointError, match="had 2 env workers"):
        more.resume(saved)


def test_environments_that_cannot_be_shared_are_refused(tmp_path: Path) -> None:
    lines = ["env.train.num_envs=5", "actor.global_batch_size=12"]
    with pytest.raises(ConfigError, match="use a multiple of 2"), training(tmp_path, None, *lines, TWO):
        pass


def test_pictures_of_two_rollouts_stay_in_order() -> None:
    random = np.random.default_rng(0)
    where = random.random((6, 5)) < 0.5
    frames = random.integers(0, 255, (int(where.sum()), 1, 2, 2, 3), np.uint8)
    numbers = RolloutFrames(where, frames).numbers
    parts = []
    for columns in (slice(0, 2), slice(2, 5)):
        own = where[:, columns]
        parts.append(RolloutFrames(own, frames[numbers[:, columns][own]]))
    joined = RolloutFrames.joined(parts)
    assert np.array_equal(joined.where, where) and np.array_equal(joined.frames, frames)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("where", [PROCESS, RAY])
def test_elsewhere_it_is_the_same_run_also_where_a_scorer_is_killed_and_models_are_swapped(
    tmp_path: Path, refinable: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """In one process, in others and under Ray: the same refined models take over at the same rollouts."""
    if where == RAY:
        pytest.importorskip("ray")
    monkeypatch.setattr(Compared, "better", property(lambda self: True))  # so that swaps happen
    mode = ("reward.reward_mode=per_step", *REFINED)
    with training(tmp_path / "a", refinable, *mode) as alone:
        alone.warm_start(QUIET)
        wanted = lived(alone, 4)
        assert wanted[0][0]["reward/version"] == 0 and wanted[0][-1]["reward/version"] >= 2
    with training(tmp_path / "b", refinable, *mode, HERE, where) as placed:
        assert isinstance(placed.source, WorkerSource) and placed.source.scorers is not None
        placed.warm_start(QUIET)
        first, _ = lived(placed, 2)
        (pid,) = placed.source.scorers.call("pid").wait()
        os.kill(pid, signal.SIGKILL)
        rest, weights = lived(placed, 2)
        same((first + rest, weights), wanted)
        (again,) = placed.source.scorers.call("pid").wait()
        assert again != pid


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("where", [PROCESS, RAY])
def test_a_killed_worker_goes_on_from_its_last_state(tmp_path: Path, refinable: Path, where: str) -> None:
    if where == RAY:
        pytest.importorskip("ray")
    with training(tmp_path, refinable, TWO, where) as run:
        assert isinstance(run.source, WorkerSource)
        run.warm_start(QUIET)
        lived(run, 1)
        run.save()
        lived(run, 1)
        pid = run.source.group.call("pid").wait()[1]
        os.kill(pid, signal.SIGKILL)
        numbers = run.iterate()
        assert run.steps == 3 * 48 and run.rollout.rewards.shape == (12, 4)
        assert np.isfinite(numbers["rollout/rewards"])
        run.iterate()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_under_ray_two_crews_act_while_one_learner_learns(tmp_path: Path, refinable: Path, shown: Path) -> None:
    """RLPD: what is remembered was lived, in rows of its own; a killed crew is cut off; it saves and resumes."""
    pytest.importorskip("ray")
    lines = [*BACKGROUND, f"algorithm.demos.path={shown}", "reward.use_reward_model=true",
             f"reward.model.model_path={refinable}", "reward.reward_mode=per_step", TWO, RAY]  # fmt: skip
    config = load("panda_rlpd_mlp", [*OFF_POLICY, *lines]).config
    check(config)
    run = Trainer(config, tmp_path)
    assert isinstance(run.source, AsyncSource)
    try:
        for _ in range(16):  # the first ones wait for the scoring worker to begin
            numbers = run.iterate()
        assert run.learner.updates > 0 and numbers["async/env_wait"] < 0.9
        assert run.learner.demos is not None and run.learner.demos.steps > 0
        pid = run.source.feed.group.call("pid").wait()[1]  # type: ignore[attr-defined]
        os.kill(pid, signal.SIGKILL)
        steps = run.steps
        while run.steps < steps + 160:
            run.iterate()
        steps = run.steps
        replay, saved = run.learner.replay, run.save()
        assert run.steps < steps + 2000  # what was on its way, and not all that a worker can make meanwhile
        rows, slots = np.nonzero(replay.kind == STEP)
        assert set(rows.tolist()) == {0, 1, 2, 3} and replay.steps == len(rows)
        found = replay.transitions(rows, slots, gamma=0.9)
        goals = [each["states"][:, GOAL] for each in (found.before, found.after)]
        assert torch.equal(*goals)  # no step leads from one life into another
    finally:
        run.close()
    again = Trainer(config, tmp_path)
    try:
        assert again.resume(saved) == run.steps
        again.iterate()
        assert again.steps > run.steps
    finally:
        again.close()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_ctrl_c_under_ray_leaves_no_process_and_a_run_to_resume(tmp_path: Path, refinable: Path) -> None:
    pytest.importorskip("ray")
    paid = [*SMALL, "reward.use_reward_model=true", f"reward.model.model_path={refinable}", "runner.film=false"]
    given = [*paid, HERE, RAY, f"runner.logger.log_path={tmp_path / 'run'}", "runner.max_steps=10000000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "referee.cli", "run", "panda_ppo_mlp", *given], text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    log, end = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 100
    while not (log.exists() and len(log.read_text().splitlines()) > 3) and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.1)
    pids = descendants(process.pid)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to all of its processes
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in errors, errors
    assert len(pids) > 5 and all_gone(pids)
    (line,) = [line for line in out.splitlines() if "go on with" in line]
    place = Path(line.split("runner.resume_dir=")[1].strip())
    with training(tmp_path / "more", refinable) as again:  # and without Ray
        assert again.resume(place) == int(place.name.removeprefix("step_")) > 0
        again.iterate()
