"""The loop: it learns, keeps the best, accumulates as one batch, resumes bit for bit, and stops when it must."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_doubles import TinyFrames, TinyModel

from referee.config.reward_training import AugmentConfig, EarlyStopConfig
from referee.errors import RefereeError
from referee.training import checkpoint
from referee.training.fit import FitResult, Report, fit, judge
from referee.training.options import NO_AUGMENTATION, FitOptions
from referee.training.source import ImageSource

AUGMENT = AugmentConfig(random_shift=1, brightness=0.05, contrast=0.05)


def run(model: TinyModel, options: FitOptions, **more: Any) -> FitResult:
    train, val = TinyFrames(60), TinyFrames(40, seed=1)
    return fit(model, ImageSource(train, options.augment), ImageSource(val), options, **more)  # type: ignore[arg-type]


def options(**changes: Any) -> FitOptions:
    return FitOptions(**{"lr": 0.02, "global_batch_size": 16, "max_epochs": 3, "num_threads": 1, "augment": AUGMENT,
                         **changes})  # fmt: skip


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("sampling", ["balanced", "natural"])
@pytest.mark.parametrize("optimizer", ["adamw", "adam"])
def test_it_learns(sampling: str, optimizer: str) -> None:
    model = TinyModel()
    reports: list[Report] = []
    result = run(model, options(max_epochs=20, sampling=sampling, optimizer=optimizer), report=reports.append)
    assert result.reason == "finished" and result.step == 20 * 4
    assert result.best.val is not None and result.best.val.auroc > 0.95
    assert len(result.history) == 20 and reports[-1].step == 80
    assert same(dict(model.state_dict()), result.state)


def test_every_learning_tensor_changes_and_no_frozen_one() -> None:
    model = TinyModel(frozen=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run(model, options(max_steps=1))
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"last.weight", "last.bias"}
    whole = TinyModel()
    before = {name: value.clone() for name, value in whole.state_dict().items()}
    run(whole, options(max_steps=1))
    assert not any(torch.equal(value, before[name]) for name, value in whole.state_dict().items())


@pytest.mark.parametrize("sampling", ["balanced", "natural"])
def test_accumulation_equals_one_batch_without_batch_statistics(sampling: str) -> None:
    weight = {"positive_weight": 0.0} if sampling == "natural" else {}
    plain = options(sampling=sampling, augment=NO_AUGMENTATION, **weight)
    run(whole := TinyModel(frozen=True), plain)
    run(parts := TinyModel(frozen=True), replace(plain, micro_batch_size=4))
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def test_threads_change_nothing() -> None:
    """Micro-batches side by side give the very bits that they give one after the other, also in running statistics."""
    plain = options(micro_batch_size=4)
    one = run(TinyModel(), plain)
    before = torch.get_num_threads()
    for count in (2, 3, 4):
        many = run(TinyModel(), replace(plain, num_threads=count))
        assert same(one.state, many.state) and torch.get_num_threads() == before
    assert int(one.state["encoder.1.num_batches_tracked"]) == one.best.step


def test_dropout_does_not_depend_on_threads() -> None:
    one, two = (
        run(TinyModel(dropout=0.3), options(micro_batch_size=4, max_steps=3, num_threads=count)) for count in (1, 2)
    )
    for name, value in one.state.items():
        torch.testing.assert_close(two.state[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("metric", ["val_auroc", "val_loss", "train_accuracy"])
def test_resume_is_exact(tmp_path: Path, chunks: int, metric: str) -> None:
    chosen = options(max_epochs=4, micro_batch_size=16 // chunks, best_metric=metric)
    whole = run(TinyModel(dropout=0.3), chosen, folder=tmp_path / "whole")

    def at(step: int) -> Callable[[], bool]:
        left = iter(range(step - 1))
        return lambda: next(left, None) is None

    part = run(TinyModel(dropout=0.3), chosen, folder=tmp_path / "part", stop=at(6))  # in the middle of an epoch
    assert part.reason == "interrupted" and part.step == 6
    saved = checkpoint.load(checkpoint.find(tmp_path / "part"))
    rest = run(TinyModel(seed=9, dropout=0.3), chosen, folder=tmp_path / "part", resume=saved)
    assert rest.step == 16 and same(whole.state, rest.state)
    strip = [{**vars(each), "seconds": 0} for each in whole.history]
    assert strip == [{**vars(each), "seconds": 0} for each in rest.history]
    a, b = (checkpoint.load(tmp_path / name / "checkpoints" / "step_16") for name in ("whole", "part"))
    assert same(a["model_state_dict"], b["model_state_dict"])
    for number, moments in a["optimizer_state_dict"]["state"].items():
        assert same(moments, b["optimizer_state_dict"]["state"][number])


def test_checkpoints_hold_what_is_documented(tmp_path: Path) -> None:
    run(TinyModel(), options(save_interval=2, max_epochs=5), folder=tmp_path)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step_16", "step_20", "step_8"]
    values = torch.load(tmp_path / "checkpoints" / "step_8" / "checkpoint.pt", weights_only=True)
    assert set(checkpoint.DOCUMENTED) <= values.keys()
    assert values["epoch"] == 2 and 0 <= values["train_acc"] <= 1 and values["train_loss"] > 0
    assert checkpoint.find(tmp_path).name == "step_20"
    run(TinyModel(), options(save_steps=3, max_steps=8), folder=tmp_path / "steps")
    assert sorted(path.name for path in (tmp_path / "steps" / "checkpoints").iterdir()) == [
        "step_3",
        "step_6",
        "step_8",
    ]


def test_resume_with_other_data_or_network_is_refused(tmp_path: Path) -> None:
    run(TinyModel(), options(max_epochs=1), folder=tmp_path)
    saved = checkpoint.load(checkpoint.find(tmp_path))
    with pytest.raises(RefereeError, match="same data, batch size"):
        run(TinyModel(), options(max_epochs=2), resume=saved)
    with pytest.raises(RefereeError, match="another network"):
        run(TinyModel(views=2), options(max_epochs=1), resume=saved)
    with pytest.raises(RefereeError, match="holds no checkpoint"):
        checkpoint.find(tmp_path / "elsewhere")
    torch.save({"weights": 1}, tmp_path / "strange.pt")
    with pytest.raises(RefereeError, match="model_state_dict"):
        checkpoint.load(tmp_path / "strange.pt")


def test_early_stop() -> None:
    patient = options(lr=1e-9, max_epochs=50, early_stop=EarlyStopConfig(patience=3, min_delta=0.01))
    result = run(TinyModel(frozen=True), patient)
    assert result.reason == "early stop" and len(result.history) == 4  # the first, and three that are no better


def test_validation_interval_and_last_epoch() -> None:
    result = run(TinyModel(), options(max_epochs=7, val_check_interval=3))
    assert [each.step for each in result.history] == [12, 24, 28]
    half = run(TinyModel(), options(max_epochs=7, max_steps=6))
    assert [each.step for each in half.history] == [4, 6]  # the end is validated even within an epoch


def test_best_is_kept_by_the_chosen_metric() -> None:
    for metric in ("val_auroc", "val_loss", "val_accuracy", "train_accuracy"):
        kept: list[Report] = []
        result = run(
            TinyModel(), options(max_epochs=8, lr=0.2, best_metric=metric), on_best=lambda _, r, k=kept: k.append(r)
        )

        def merit(report: Report, metric: str = metric) -> float:
            assert report.val is not None
            return {"val_auroc": report.val.auroc, "val_loss": -report.val.loss, "val_accuracy": report.val.accuracy,
                    "train_accuracy": report.train_accuracy}[metric]  # fmt: skip

        assert merit(result.best) == max(map(merit, result.history))
        assert kept[-1] == result.best and all(report.best for report in kept)


def test_nan_stops_and_keeps_the_last_good_weights(tmp_path: Path) -> None:
    model = TinyModel()
    source = ImageSource(TinyFrames(60))

    class Poisoned(ImageSource):
        steps = 0

        def inputs(self, indices: np.ndarray, random: np.random.Generator | None) -> torch.Tensor:
            self.steps += 1
            if self.steps == 6:
                with torch.no_grad():
                    model.last.weight.register_hook(lambda gradient: gradient * torch.nan)
            return super().inputs(indices, random)

    with pytest.raises(RefereeError, match="not a number at step 5: lower lr") as caught:
        fit(model, Poisoned(TinyFrames(60)), source, options(), folder=tmp_path)  # type: ignore[arg-type]
    folder = tmp_path / "checkpoints" / "step_5"
    assert str(folder) in str(caught.value)
    assert all(bool(value.isfinite().all()) for value in checkpoint.load(folder)["model_state_dict"].values())


def test_without_validation() -> None:
    with pytest.raises(RefereeError, match="no validation frames"):
        fit(TinyModel(), ImageSource(TinyFrames()), None, options())  # type: ignore[arg-type]
    result = fit(TinyModel(), ImageSource(TinyFrames()), None, options(best_metric="train_accuracy"))  # type: ignore[arg-type]
    assert result.best.val is None and result.best.train_accuracy > 0


def test_scores_by_hand() -> None:
    scores = judge(np.array([1, 0, 1, 0]), np.array([2.0, -1.0, -0.5, -3.0], np.float32))
    assert scores.auroc == 1.0 and scores.accuracy == 0.75
    losses = [np.log1p(np.exp(-2.0)), np.log1p(np.exp(-1.0)), np.log1p(np.exp(0.5)), np.log1p(np.exp(-3.0))]
    assert scores.loss == pytest.approx(np.mean(losses))
