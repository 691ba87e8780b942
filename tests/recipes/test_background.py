"""Acting, judging and learning side by side: the same run, with nobody left behind and no two models mixed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.recipes.test_off_policy import SMALL

from referee.config import load
from referee.errors import ConfigError, RefereeError
from referee.learn.checks import check
from referee.learn.source import weights_of
from referee.learn.trainer import Trainer
from referee.learn.worker import RolloutWorker
from referee.refine.retrain import Compared
from referee.rewards import RewardManager
from referee.rl.replay import STEP

pytestmark = pytest.mark.slow
BACKGROUND = ["runner.background.enabled=true", "runner.background.publish_interval=4", "algorithm.random_steps=0"]


def training(folder: Path, *more: str) -> Trainer:
    config = load("panda_sac_mlp", [*SMALL, *BACKGROUND, *more]).config
    check(config)
    return Trainer(config, folder)


def test_it_learns_publishes_and_leaves_nobody_behind(tmp_path: Path) -> None:
    run = training(tmp_path)
    try:
        for _ in range(12):
            numbers = run.iterate()
        assert run.steps >= 12 * 16 and run.learner.updates > 0
        for name in ("train/critic_loss", "async/lag_seconds", "async/policy_lag_max", "async/env_wait", "async/utd",
                     "time/steps_per_second", "rollout/rewards"):  # fmt: skip
            assert np.isfinite(numbers[name])
        assert 0 <= numbers["async/env_wait"] <= 1
        # What is remembered is what was lived: each state follows from the one before.
        replay = run.learner.replay
        assert replay.steps == min(run.steps, replay.steps)
        saved = run.save()
    finally:
        run.close()
    assert not multiprocessing.active_children()
    again = training(tmp_path)
    try:
        assert again.resume(saved) == run.steps and again.learner.replay.steps == run.learner.replay.steps
        again.iterate()
        assert again.steps > run.steps
    finally:
        again.close()


def test_an_error_in_the_scoring_thread_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refinable: Path
) -> None:
    """Whatever it is: a thread that dies alone would leave the learner waiting for ever."""
    run = training(tmp_path, "reward.use_reward_model=true", f"reward.model.model_path={refinable}")
    monkeypatch.setattr(run.reward, "relabel", lambda *args, **kwargs: 1 / 0)

    def go_on() -> None:
        for _ in range(20):
            run.iterate()

    try:
        with pytest.raises(ZeroDivisionError):
            go_on()
    finally:
        run.close()


def test_nobody_acts_beyond_the_last_step(tmp_path: Path) -> None:
    """However slow the learner is: what is made is bounded, and all of it is learned from."""
    run = training(tmp_path, "runner.max_steps=70", "runner.background.max_lag=10000")
    try:
        while not run.finished():
            run.iterate()
            time.sleep(1.0)  # the environments could make thousands of steps meanwhile
        run.save()
        assert run.steps == 80  # five rollouts of 16 steps
    finally:
        run.close()


def test_it_saves_also_while_what_was_made_has_no_room(tmp_path: Path) -> None:
    """With room for one rollout the environments wait for the learner, and hear that it wants to save."""
    run = training(tmp_path, "runner.background.max_lag=1", "algorithm.utd=2")
    try:
        for _ in range(4):
            run.iterate()
            time.sleep(0.5)  # everything is full by now
            assert run.save().exists()
    finally:
        run.close()


def test_no_two_models_are_mixed(tmp_path: Path, refinable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compared, "better", property(lambda self: True))
    run = training(
        tmp_path, "reward.use_reward_model=true", f"reward.model.model_path={refinable}", "reward.refine.enabled=true",
        "reward.refine.interval=3", "reward.refine.ask=8", "reward.refine.steps=1", "reward.refine.budget=60",
        "reward.reward_type=continuous", "reward.reward_threshold=0", "runner.background.pace=40",
    )  # fmt: skip
    try:
        for _ in range(20):
            numbers = run.iterate()
            replay = run.learner.replay
            versions = replay.version[replay.kind == STEP]
            assert run.refinement is not None and (versions == run.reward.manager.version).all()
        assert (run.refinement.swaps and "reward/true_success" in numbers) or "reward/version" in numbers
    finally:
        run.close()


def test_verdicts_that_end_episodes_are_watched_and_asked_about_here(tmp_path: Path, refinable: Path) -> None:
    """The process that acts judges by itself; the alarm and the questions, which are here, see its frames as well."""
    run = training(
        tmp_path, "reward.use_reward_model=true", f"reward.model.model_path={refinable}", "reward.reward_mode=per_step",
        "reward.terminate_on=model", "reward.reward_threshold=0", "reward.gate_k=1", "reward.gate_n=1",
        "reward.refine.enabled=true", "reward.refine.labeller=log", "reward.refine.interval=6", "reward.refine.ask=8",
        "runner.background.pace=40",
    )  # fmt: skip
    seen: dict[str, float] = {}
    try:
        for _ in range(24):
            seen |= run.iterate()
        assert seen["env/episode_length"] == 1  # each frame is called a success, and ends its episode
        assert seen["reward/alarm_strange"] > 0.5 and run.alarm is not None and run.alarm.raised_at is not None
        assert run.refinement is not None and run.refinement.refiner is not None
        asked = run.refinement.refiner.book.store
        assert len(asked) > 0 and all(episode.success is None for episode in asked)  # the queue: nobody answered yet
        frames = next(iter(asked)).view("front")
        assert frames.shape[1:] == (64, 64, 3) and frames.std() > 0
    finally:
        run.close()


def test_nobody_else_uses_the_model_while_an_evaluation_does(
    tmp_path: Path, refinable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the model found in the frames of an evaluation is not mixed with those of a rollout."""
    run = training(
        tmp_path, "reward.use_reward_model=true", f"reward.model.model_path={refinable}", "reward.reward_mode=per_step"
    )
    judge, at_work = RewardManager.judge, list[str]()

    def alone(self: RewardManager, *args: Any, **kwargs: Any) -> Any:
        at_work.append(threading.current_thread().name)
        assert len(at_work) == 1, at_work
        time.sleep(0.02)
        try:
            return judge(self, *args, **kwargs)
        finally:
            at_work.pop()

    monkeypatch.setattr(RewardManager, "judge", alone)
    try:
        for _ in range(6):
            run.iterate()
            assert run.evaluate()["eval/reward/judged"] == 4
    finally:
        run.close()


def test_what_goes_wrong_where_it_acts_is_one_line_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = training(tmp_path)
    run.source.restore_state({"noise": np.zeros(6, np.uint64)})  # a checkpoint without environments
    try:
        with pytest.raises(RefereeError, match="acting stopped: env rank 0: saved environment state does not fit"):
            run.iterate()
    finally:
        run.close()
    assert not multiprocessing.active_children()


def test_ppo_cannot_go_on_without_its_learner() -> None:
    with pytest.raises(ConfigError, match="use algorithm"):
        check(load("panda_ppo_mlp", ["runner.background.enabled=true"]).config)


def test_updates_that_could_never_be_made_are_refused() -> None:
    lines = ["algorithm.utd=8", "algorithm.rollout_steps=10", "env.train.num_envs=1", "runner.background.enabled=true"]
    check(load("panda_sac_mlp", [*lines, "runner.background.publish_interval=10"]).config)
    with pytest.raises(ConfigError, match=r"utd=8 asks for 80 updates .* at most 32 are made: raise it to 10"):
        check(load("panda_sac_mlp", [*lines, "runner.background.publish_interval=4"]).config)


def test_weights_arrive_whole(tmp_path: Path) -> None:
    run = training(tmp_path)
    try:
        for _ in range(6):
            run.iterate()
        weights, config = weights_of(run), run.config
        worker = RolloutWorker(config, tmp_path / "worker", run.policy.spec)
        batch = worker.collect(16, weights)
        assert batch.updates == run.learner.updates > 0
        theirs = worker.policy.state_dict()
        assert all(torch.equal(value, theirs[name]) for name, value in run.policy.state_dict().items())
        before = {name: value.copy() for name, value in weights.arrays.items()}
        run.iterate()  # what is on its way does not change
        assert all(np.array_equal(value, before[name]) for name, value in weights.arrays.items())
        worker.close()
    finally:
        run.close()


def test_who_acts_and_dies_is_started_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = training(tmp_path)
    try:
        run.iterate()
        (pid,) = run.source.feed.group.pid().wait()
        os.kill(pid, signal.SIGKILL)
        done = run.steps
        while run.steps < done + 10 * 16:
            run.iterate()
        assert run.source.feed.group.pid().wait() != [pid]
        assert "env rank 0 died (exit code -9): made again, 1 of 3" in caplog.text
    finally:
        run.close()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_run_that_is_stopped_leaves_no_process(tmp_path: Path, how: signal.Signals) -> None:
    lines = [*SMALL, *BACKGROUND, f"runner.logger.log_path={tmp_path / 'run'}", "runner.max_steps=10000000",
             "runner.save_interval=5"]  # fmt: skip
    command = [sys.executable, "-m", "referee.cli", "run", "panda_sac_mlp", *lines]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    checkpoints = tmp_path / "run" / "checkpoints"
    end = time.monotonic() + 90
    while not list(checkpoints.glob("step_*")) and time.monotonic() < end:
        time.sleep(0.2)
    assert list(checkpoints.glob("step_*")), "no checkpoint in time"
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    process.send_signal(how)
    said, _ = process.communicate(timeout=60)
    end = time.monotonic() + 15
    while time.monotonic() < end and any(_acts(pid) for pid in children):
        time.sleep(0.2)
    assert not any(_acts(pid) for pid in children)
    if how != signal.SIGKILL:
        assert "go on with runner.resume_dir=" in said and process.returncode != 0


def _acts(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return False
