"""The arms of a comparison count what they say they count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from referee.demo.ablation_runs import Course, Verdicts, judge, learn, record_experts, weak_config, weak_policy
from referee.metrics.rates import Rate
from referee.rewards.truth import TruthBeside, paired_difference

SMALL = [
    "env.train.num_envs=4", "env.eval.num_envs=4", "env.train.max_episode_steps=6", "env.eval.max_episode_steps=6",
    "algorithm.rollout_steps=12", "actor.global_batch_size=24", "actor.model.hidden_dims=[8]", "actor.num_threads=1",
    "env.train.num_threads=1", "env.eval.num_threads=1", "runner.max_steps=96",
]  # fmt: skip


def test_a_course_is_what_the_iterations_said() -> None:
    course = Course()
    for step, (model_only, true_only) in enumerate([(9, 0), (4, 1), (0, 0), (1, 0)], 1):
        truth = TruthBeside()
        truth.add(
            [True] * (3 + model_only) + [False] * 7,
            [True] * 3 + [False] * (model_only + 7 - true_only) + [True] * true_only,
        )
        course.add(100 * step, truth.log())
    course.add(500, {})
    assert course.steps == [100, 200, 300, 400, 500] and np.isnan(course.true[-1])
    assert course.true[1] == pytest.approx(4 / 14) and course.model[1] == pytest.approx(7 / 14)
    assert course.gap(2).value == pytest.approx(1 / 11), "iterations in which no episode ended say nothing"
    last_four = course.gap(4)
    assert last_four == paired_difference(9, 5, 1, 20) and last_four.low < 4 / 35 < last_four.high


def test_verdicts_in_words() -> None:
    found = Verdicts(Rate(30, 100), 0.42)
    assert found.gap == pytest.approx(0.12) and str(found).startswith("30% [") and str(found).endswith("model 42%")
    assert "model" not in str(Verdicts(Rate(30, 100), float("nan")))


@pytest.mark.slow
@pytest.mark.parametrize(("count", "recorded"), [(3, 3), (66, 66)])
def test_as_many_experts_as_asked_for(tmp_path: Path, count: int, recorded: int) -> None:
    store = record_experts("Reach", count, tmp_path, seed=3)
    assert len(store) == recorded
    episode = next(iter(store))
    assert episode.meta.cameras == ("front", "side") and episode.meta.source == "expert"


def test_a_weak_policy_is_stopped_saved_and_judged(tmp_path: Path) -> None:
    run = weak_policy(weak_config("Reach", 0, *SMALL), tmp_path, success=0.0)
    assert run.steps <= 96 and (tmp_path / "checkpoints").is_dir()
    found = judge(run, 8, seed=5)
    assert found.true.trials == 8 and np.isnan(found.model)
    assert len(learn(run).steps) == (96 - run.steps) // 48 or run.finished()
    run.close()
