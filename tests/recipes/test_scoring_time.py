"""`time/compute_model_rewards`: seconds of scoring per step of all environments, wherever a model scores."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.recipes.slow_models import SECONDS, SlowWindows, save_slow_model
from tests.recipes.test_background import BACKGROUND
from tests.recipes.test_off_policy import SMALL as OFF_POLICY
from tests.recipes.test_placed import HERE, RAY, TWO
from tests.recipes.test_placed import SMALL as PPO
from tests.recipes.test_trend_reward import PPO as TREND

from referee.config import load
from referee.learn.checks import check
from referee.learn.trainer import Trainer
from referee.models import Artifact
from referee.rewards import window_model as trends

NAME = "time/compute_model_rewards"
STEPS, ENVS = 12, 4
PER_STEP = "reward.reward_mode=per_step"
ENDS = "reward.terminate_on=model"


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_slow_model(tmp_path_factory.mktemp("slow") / "model")


@contextmanager
def training(preset: str, *lines: str, folder: Path) -> Iterator[Trainer]:
    config = load(preset, ["runner.imports=[tests.recipes.slow_models]", *lines]).config
    check(config)
    run = Trainer(config, folder)
    try:
        yield run
    finally:
        run.close()


def paid_by(model: Path) -> list[str]:
    return ["reward.use_reward_model=true", f"reward.model.model_path={model}", "reward.alarm.enabled=false"]


def scored_frames(run: Trainer, *modes: str) -> int:
    """Of the latest rollout."""
    ended = run.rollout.terminated | run.rollout.truncated
    return ended.size if PER_STEP in modes or ENDS in modes else int(ended.sum())


def holds(run: Trainer, *modes: str) -> None:
    """Two iterations: at least what the frames take, and no more than the whole rollout took."""
    for _ in range(2):
        numbers = run.iterate()
        least = SECONDS * scored_frames(run, *modes) / STEPS
        assert least <= numbers[NAME] <= numbers["time/rollout"] / STEPS
        judged = scored_frames(run, *(mode for mode in modes if mode != ENDS))
        assert numbers["reward/judged"] == judged
        assert least > 0.002  # what is asserted is the sleep, and not the time that the network takes anyway


MODES = [(), (PER_STEP,), (ENDS,), (ENDS, PER_STEP)]


@pytest.mark.parametrize("modes", MODES)
@pytest.mark.parametrize("where", [(), (HERE,), (TWO,)])
def test_in_one_process_and_placed(slow: Path, tmp_path: Path, modes: tuple[str, ...], where: tuple[str, ...]) -> None:
    """TWO: each of two rollout workers has half of the environments; the time is that of both."""
    with training("panda_ppo_mlp", *PPO, *paid_by(slow), *modes, *where, folder=tmp_path) as run:
        holds(run, *modes)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("modes", [(PER_STEP,), (ENDS,)])
def test_under_ray(slow: Path, tmp_path: Path, modes: tuple[str, ...]) -> None:
    """Scored by a reward worker of its own, or by the one that acts."""
    pytest.importorskip("ray")
    with training("panda_ppo_mlp", *PPO, *paid_by(slow), *modes, HERE, RAY, folder=tmp_path) as run:
        holds(run, *modes)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("modes", [(PER_STEP,), (ENDS,), (PER_STEP, TWO, RAY)])
def test_side_by_side(slow: Path, tmp_path: Path, modes: tuple[str, ...]) -> None:
    """Rollouts of 4 steps of 4 environments, each frame scored: by a thread, where it acts, or by a reward worker."""
    if RAY in modes:
        pytest.importorskip("ray")
    with training("panda_sac_mlp", *OFF_POLICY, *BACKGROUND, *paid_by(slow), *modes, folder=tmp_path) as run:
        began, rows, steps = time.monotonic(), list[float](), list[int]()
        for _ in range(4):
            before = run.steps
            rows.append(run.iterate()[NAME])
            steps.append((run.steps - before) // ENVS)
        assert min(rows) >= SECONDS * ENVS
        assert np.dot(rows, steps) <= 2 * (time.monotonic() - began)  # there are two who score, at most


@pytest.mark.parametrize("where", [(), (HERE,), (TWO,)])
def test_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: tuple[str, ...]) -> None:
    model = SlowWindows()
    monkeypatch.setattr(trends, "make_window_model", lambda config: model)
    with training("panda_ppo_mlp_qwentrend_reward", *TREND, *where, folder=tmp_path) as run:
        for _ in range(2):
            numbers = run.iterate()
            windows, model.answered = model.answered, 0
            assert numbers["reward/windows"] == windows
            assert 0.002 < SECONDS * windows / STEPS <= numbers[NAME] <= numbers["time/rollout"] / STEPS


def test_scoring_a_replay_again_is_no_scoring_of_the_rollout(refinable: Path, tmp_path: Path) -> None:
    slow = save_slow_model(tmp_path / "model", Artifact.load(refinable).provenance)
    lines = [*OFF_POLICY, *paid_by(slow), PER_STEP, "reward.refine.enabled=true", "reward.refine.interval=100"]
    with training("panda_sac_mlp", *lines, folder=tmp_path) as run:
        assert run.refinement is not None
        run.iterate()
        frames = run.learner.rescore(run.reward)  # type: ignore[union-attr]
        assert frames == 16
        numbers = run.iterate()
        assert SECONDS * ENVS <= numbers[NAME] <= numbers["time/rollout"] / 4
