"""Refinement inside a run: who pays is known for every transition, and a run can be resumed and explained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from referee.cli import main
from referee.config import load
from referee.episodes import EpisodeStore
from referee.errors import RefereeError
from referee.labels.log import LabelLog
from referee.learn.evaluation import Best
from referee.learn.trainer import Trainer
from referee.models import Artifact, Calibration
from referee.recipes import run as run_recipe
from referee.refine.retrain import Compared
from referee.rewards.guards import weakness
from referee.rewards.source import make_reward
from referee.rl import checkpoint

SMALL = [
    "env.train.num_envs=4", "env.eval.num_envs=4", "env.train.max_episode_steps=3", "algorithm.rollout_steps=12",
    "actor.global_batch_size=24", "actor.model.hidden_dims=[8]", "algorithm.update_epochs=2", "actor.num_threads=1",
    "runner.eval_episodes=4", "env.train.num_threads=1", "env.eval.num_threads=1", "env.eval.max_episode_steps=3",
    "reward.refine.enabled=true", "reward.refine.interval=1", "reward.refine.ask=12", "reward.refine.steps=2",
    "reward.refine.budget=60", "runner.film=false",
]  # fmt: skip


@pytest.fixture(scope="module")
def model(refinable: Path) -> Path:
    """A small model that nobody trained, beside frames that it might have learned from."""
    return refinable


@pytest.fixture(autouse=True)
def taking_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every retrained model is taken for a better one, so that swaps happen."""
    monkeypatch.setattr(Compared, "better", property(lambda self: True))


def training(model: Path, folder: Path, *more: str) -> Trainer:
    lines = ["reward.use_reward_model=true", f"reward.model.model_path={model}"]
    run = Trainer(load("panda_ppo_mlp", [*SMALL, *lines, *more]).config, folder)
    assert run.policy.norm is not None
    run.policy.norm.update(torch.from_numpy(run.source.env.observation["states"]))
    return run


MODES = ["reward.reward_mode=terminal", "reward.reward_mode=per_step"]


@pytest.mark.parametrize("mode", MODES)
def test_every_transition_says_which_model_paid(model: Path, tmp_path: Path, mode: str) -> None:
    run = training(model, tmp_path, mode)
    assert run.refinement is not None
    paid, now = [], []
    for _ in range(4):
        numbers = run.iterate()
        paid.append(np.unique(run.rollout.versions).tolist())
        now.append(run.reward.manager.version)
    assert now[-1] >= 2, "models took over"
    assert paid == [[0], *([version] for version in now[:-1])], "a new model pays from the next rollout on, whole"
    assert numbers["refine/version"] == now[-1] and len(run.refinement.swaps) == now[-1]
    assert run.reward.manager.artifact is run.refinement.refiner.artifact  # type: ignore[union-attr]


def test_a_batch_of_two_models_is_refused(model: Path, tmp_path: Path) -> None:
    run = training(model, tmp_path)
    run.iterate()
    run.rollout.versions[3] = 7
    with pytest.raises(RefereeError, match="paid in one batch"):
        run.learner.update(run.rollout)


def test_a_swap_changes_what_is_paid(model: Path, tmp_path: Path) -> None:
    """The new model's word is what is in the buffer."""
    run = training(model, tmp_path, "reward.reward_type=score")
    for _ in range(3):
        run.iterate()
    assert run.reward is not None and run.reward.manager.version >= 1
    run.source.collector.collect(run.source.env, run.source.rollout, run.reward)
    scored = run.reward.relabel(run.rollout)
    drawn, _ = run.reward.sample(10_000, np.random.default_rng(0))
    said = run.reward.manager.artifact.logits(drawn)
    assert scored.version == run.reward.manager.version
    np.testing.assert_allclose(run.rollout.rewards[scored.judged], said, rtol=1e-4, atol=1e-5)
    assert not np.allclose(Artifact.load(model).logits(drawn), said, atol=1e-5)


def test_a_resumed_run_goes_on_with_its_model_and_its_book(model: Path, tmp_path: Path) -> None:
    run = training(model, tmp_path)
    for _ in range(3):
        run.iterate()
    assert run.refinement is not None and run.refinement.refiner is not None
    version, asked, place = run.reward.manager.version, run.refinement.refiner.book.asked, run.save()
    run.iterate()  # what happens after the checkpoint is forgotten
    again = training(model, tmp_path)
    again.resume(place)
    assert again.refinement is not None and again.refinement.refiner is not None
    assert (again.reward.manager.version, again.refinement.refiner.version) == (version, version)
    assert again.refinement.refiner.book.asked == asked and len(again.refinement.refiner.rounds) == 3
    assert again.refinement.swaps == run.refinement.swaps[: len(again.refinement.swaps)]
    ours = again.reward.manager.artifact.model.state_dict()
    stored = Artifact.load(tmp_path / "refine" / "versions" / f"v{version}").model.state_dict()
    assert all(torch.equal(ours[name], stored[name]) for name in stored)
    again.iterate()


def test_answers_may_come_later_through_the_log(model: Path, tmp_path: Path) -> None:
    run = training(model, tmp_path, "reward.refine.labeller=log", "reward.refine.budget=24")
    assert run.refinement is not None and run.refinement.refiner is not None
    for _ in range(3):
        run.iterate()
    assert run.refinement.refiner.book.asked == 24 and run.reward.manager.version == 0
    log = LabelLog.of(EpisodeStore(tmp_path / "refine" / "asked"))
    for sheet in run.refinement.refiner.book.sheets():
        for frame in range(len(sheet)):
            log.append(sheet.id, bool(frame % 2), source="web", frames=frame)
    numbers = run.iterate()
    assert numbers["refine/answered"] == 24 and run.reward.manager.version == 1


def test_answers_of_a_person_who_lags_are_learned(model: Path, tmp_path: Path) -> None:
    """The first four sheets are answered while the policy is at the seventh: nobody waits for the last three."""
    run = training(model, tmp_path, "reward.refine.labeller=log", "reward.refine.budget=96")
    assert run.refinement is not None and run.refinement.refiner is not None
    for _ in range(7):
        run.iterate()
    book = run.refinement.refiner.book
    for sheet in book.sheets()[:4]:
        book.answer(sheet, [bool(frame % 2) for frame in range(len(sheet))], source="web", who="ann")
    numbers = run.iterate()
    assert numbers["refine/answered"] == 48 and run.reward.manager.version == 1
    assert sum(each.fooled + each.missed for each in run.refinement.refiner.rounds[:4]) > 0, "late answers count"


def test_a_sheet_that_a_resumed_run_forgot_stays_forgotten(model: Path, tmp_path: Path) -> None:
    """A second resume, from a later step, must not take it for one of its own."""
    run = training(model, tmp_path, "reward.refine.interval=2")
    run.iterate()
    first = run.save()
    run.iterate()  # a round that the next run has not seen
    again = training(model, tmp_path, "reward.refine.interval=100")
    again.resume(first)
    again.iterate()
    second = again.save()
    last = training(model, tmp_path)
    last.resume(second)
    assert last.refinement is not None and last.refinement.refiner is not None
    assert last.refinement.refiner.book.asked == 0 and last.refinement.refiner.rounds == []
    assert len(last.refinement.refiner.book.store) == 1, "it stays on disk"


def test_a_better_model_quiets_the_alarm(model: Path, tmp_path: Path) -> None:
    run = training(model, tmp_path)
    assert run.alarm is not None and run.refinement is not None
    run.alarm.raised_at = run.alarm.first_at = 48
    while not run.refinement.swaps:
        run.iterate()
    assert run.alarm.raised_at != 48 and run.alarm.first_at == 48


def test_the_word_of_a_model_that_was_replaced_is_no_measure(model: Path, tmp_path: Path) -> None:
    """A fooled model says 93 %; the better one, which says less, must still find its best policy."""
    run = training(model, tmp_path)
    assert run.refinement is not None
    run.evaluation._keep_best(run, 2.0)
    while not run.reward.manager.version:
        run.iterate()
    said = run.evaluate()["eval/reward/model_success"]
    assert run.evaluation.best == Best(said, run.steps)
    assert checkpoint.load_meta(tmp_path / "checkpoints" / "best")["steps"] == run.steps
    mined = training(model, tmp_path / "mined", "reward.refine.mine=64", "reward.refine.budget=0")
    mined.evaluation._keep_best(mined, 2.0)
    mined.warm_start(Console(quiet=True))
    assert mined.evaluation.best == Best()


def test_failures_are_mined_before_the_policy_learns(model: Path, tmp_path: Path) -> None:
    run = training(model, tmp_path, "reward.refine.mine=64", "reward.refine.budget=0")
    run.warm_start(Console(quiet=True))
    assert run.refinement is not None and run.refinement.refiner is not None
    sheet = run.refinement.refiner.book.sheets()[0]
    assert set(sheet.reasons) == {"mined"} and (sheet.answers == 0).all() and len(sheet) == 64
    assert run.reward.manager.version == 1 and run.refinement.refiner.account(0)["labels"] == 0
    for _ in range(2):
        run.iterate()
    assert run.refinement.refiner.book.asked == 0


def test_refinement_changes_nothing_before_its_first_swap(model: Path, tmp_path: Path) -> None:
    """The questions draw no random number of the training."""
    asked = training(model, tmp_path / "a")
    alone = training(model, tmp_path / "b", "reward.refine.enabled=false")
    for run in (asked, alone):
        run.iterate()
    pairs = zip(asked.policy.state_dict().values(), alone.policy.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_whole_run_is_explained(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        "reward.use_reward_model=true", f"reward.model.model_path={model}", "runner.max_steps=144",
        f"runner.logger.log_path={tmp_path / 'run'}", "runner.logger.logger_backends=[]", "runner.eval_interval=1",
        "reward.refine.seconds_per_label=3",
    ]  # fmt: skip
    run_recipe(load("panda_ppo_mlp", [*SMALL, *lines]))
    capsys.readouterr()
    assert main(["refine", "log", str(tmp_path / "run"), "--sheets", str(tmp_path / "sheets")]) == 0
    said = capsys.readouterr().out
    assert "36 frames asked about" in said and "v1 (new)" in said
    assert "(steps 48 → 144)" in said and "36 labels, 1.8 minutes of a person, 0.1 minutes of the robot" in said
    assert "per 100 labels" in said and "per hour of the robot" in said
    assert len(list((tmp_path / "sheets").glob("*.png"))) == 3
    result: dict[str, Any] = __import__("json").loads((tmp_path / "run" / "result.json").read_text())
    assert result["refinement"]["labels"] == 36 and result["refinement"]["label_minutes"] == pytest.approx(1.8)
    assert main(["refine", "log", str(tmp_path)]) != 0
    assert "holds no refinement" in capsys.readouterr().err


def test_a_model_is_refined_on_recorded_episodes(
    model: Path, recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["refine", "run", str(model), str(recorded), "--labeller", "truth", "--budget", "24",
                 "--ask", "12", "--steps", "2", "--out", str(tmp_path / "better")]  # fmt: skip
    capsys.readouterr()
    assert main(arguments) == 0
    assert "better model" in capsys.readouterr().out
    assert Artifact.load(tmp_path / "better" / "versions" / "v1").provenance["refined"]["version"] == 1


STRONG = {"failing_episodes": 200, "episode_fpr_upper": 0.03, "success_episodes": 50, "detected_episodes": 48}


@pytest.mark.parametrize(
    ("calibration", "reason"),
    [
        (Calibration(), "nobody has calibrated it"),
        (Calibration(target_episode_fpr=0.01, measured=STRONG), None),
        (Calibration(target_episode_fpr=0.01, measured={**STRONG, "episode_fpr_upper": 0.2}), "up to 20% may be paid"),
        (Calibration(target_episode_fpr=0.01, measured={**STRONG, "detected_episodes": 9}), "only 9 of 50"),
    ],
)
def test_a_weak_audit_is_named(calibration: Calibration, reason: str | None) -> None:
    found = weakness(calibration)
    assert found is None if reason is None else found is not None and reason in found


@pytest.mark.parametrize("hold", [True, False])
def test_terminal_is_held_over_per_step_when_the_audit_is_weak(
    model: Path, tmp_path: Path, hold: bool, caplog: pytest.LogCaptureFixture
) -> None:
    more = ["reward.reward_mode=per_step", f"reward.hold_terminal={str(hold).lower()}"]
    run = training(model, tmp_path, *more)
    assert run.reward is not None
    assert run.reward.options.reward_mode == ("terminal" if hold else "per_step")
    assert "judged" in caplog.text
    caplog.clear()
    make_reward(run.config.reward, run.env, 12, draws_only=True)
    assert not caplog.text  # who only draws says nothing: whoever judges has said it
    strong = Artifact.load(model)
    strong.recalibrate(replace(strong.calibration, target_episode_fpr=0.01, measured=STRONG))
    caplog.clear()
    kept = make_reward(run.config.reward, run.env, 12)
    strong.recalibrate(Calibration())
    assert kept is not None and kept.options.reward_mode == "per_step" and not caplog.text
