"""What a run reports of itself: seconds that include all of its work, and steps that never go backwards."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.recipes.test_train_policy import TINY

from referee.config import Loaded, load
from referee.learn import build, evaluation, warm_start
from referee.recipes.train_policy import train_policy
from referee.runs.logbook import Logbook, read_metrics

CLONED = ["algorithm.bc_warmup.episodes=8", "algorithm.bc_warmup.epochs=1"]


def records(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def slower(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, seconds: float) -> None:
    """Let a function sleep before it works."""
    work: Callable[..., Any] = getattr(owner, name)

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return work(*args, **kwargs)

    monkeypatch.setattr(owner, name, slow)


def test_all_that_a_run_does_counts_but_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Loading (0.2 s), demonstrating (0.2 s) and cloning (0.2 s) count; two evaluations (1 s) do not."""
    slower(monkeypatch, build, "make_rewards", 0.2)
    slower(monkeypatch, warm_start, "demonstrations", 0.2)
    slower(monkeypatch, warm_start.bc, "clone", 0.2)
    slower(monkeypatch, evaluation, "roll_out", 0.5)
    lines = [*TINY, *CLONED, "runner.max_steps=80", f"runner.logger.log_path={tmp_path / 'run'}"]
    began = time.perf_counter()
    train_policy(load("panda_ppo_mlp", lines))
    whole = time.perf_counter() - began
    first, last = records(tmp_path / "run")
    assert (first["step"], last["step"]) == (0, 80)
    assert 0.6 <= 60 * first["time/minutes"] < 60 * last["time/minutes"] <= whole - 1.0
    seconds = 60 * json.loads((tmp_path / "run/result.json").read_text())["minutes"]
    assert seconds == pytest.approx(60 * last["time/minutes"])
    assert f"{seconds / 60:.1f} minutes of training" in capsys.readouterr().out
    (tmp_path / "run/checkpoints/step_80").rename(tmp_path / "step_80")
    resumed = ["runner.max_steps=160", f"runner.resume_dir={tmp_path / 'step_80'}"]
    train_policy(load("panda_ppo_mlp", [*TINY, *resumed, f"runner.logger.log_path={tmp_path / 'more'}"]))
    (after,) = records(tmp_path / "more")
    assert 60 * after["time/minutes"] >= seconds + 0.2  # loading it again


def test_steps_never_go_backwards(tmp_path: Path, refinable: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a warm-up, evaluations, rounds of refinement, and a run that is resumed from an earlier checkpoint."""
    run = tmp_path / "run"
    lines = [*TINY, *CLONED, "runner.eval_interval=1", "runner.keep_every=1", "reward.use_reward_model=true",
             "runner.save_interval=1", f"reward.model.model_path={refinable}", "reward.refine.enabled=true",
             "reward.refine.interval=2", "reward.refine.ask=8", "reward.refine.steps=1", "reward.refine.budget=40",
             f"runner.logger.log_path={run}"]  # fmt: skip
    train_policy(load("panda_ppo_mlp", [*lines, "runner.max_steps=480"]))
    before = (run / "metrics.jsonl").read_text().splitlines()
    assert [record["step"] for record in records(run)] == [0, 80, 160, 240, 320, 400, 480]
    assert "dropped" not in capsys.readouterr().out
    (run / "metrics.jsonl").open("a").write('{"step": 560, "env/re')  # as a kill leaves it
    again = ["runner.max_steps=400", f"runner.resume_dir={run / 'checkpoints/step_240'}"]
    train_policy(load("panda_ppo_mlp", [*lines, *again]))
    assert capsys.readouterr().out.count("metrics.jsonl: dropped 3 records after step 240") == 1
    assert [record["step"] for record in records(run)] == [0, 80, 160, 240, 320, 400]
    assert (run / "metrics.jsonl").read_text().splitlines()[:4] == before[:4]
    minutes = [record["time/minutes"] for record in records(run)]
    assert all(one < other for one, other in pairwise(minutes))
    assert any("time/refine" in record for record in records(run)[4:])


def loaded(*backends: str) -> Loaded:
    return load("panda_ppo_mlp", [f"runner.logger.logger_backends=[{','.join(backends)}]"])


def test_a_new_run_in_an_old_folder_begins_its_own_file(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        book = Logbook(tmp_path, loaded())
        assert book.dropped == (2 if value == 2.0 else 0)
        for step in (10, 20):
            book.write({"x": value}, step)
        book.close()
    assert read_metrics(tmp_path) == [{"step": 10, "x": 2.0}, {"step": 20, "x": 2.0}]
    assert [(record["step"], record["x"]) for record in records(tmp_path)] == [(10, 2.0), (20, 2.0)]


def test_a_worker_that_begins_again_from_a_checkpoint_takes_its_records_back(tmp_path: Path) -> None:
    book = Logbook(tmp_path, loaded())
    for step, value in ((0, 0.0), (0, 0.5), (10, 1.0), (20, 1.0), (30, 1.0), (20, 2.0), (30, 2.0)):
        book.write({"x": value}, step)
    book.close()
    assert [(record["step"], record["x"]) for record in records(tmp_path)] == [
        (0, 0.0), (0, 0.5), (10, 1.0), (20, 2.0), (30, 2.0),
    ]  # fmt: skip


def test_tensorboard_forgets_the_same_steps(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for value, resumed_at in ((1.0, None), (2.0, 10)):
        book = Logbook(tmp_path, loaded("tensorboard"), resumed_at=resumed_at)
        for step in (10, 20, 30) if resumed_at is None else (20,):
            book.write({"x": value}, step)
        book.close()
        time.sleep(1.1)  # files are ordered by the second in which they were made
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("x")] == [(10, 1.0), (20, 2.0)]
