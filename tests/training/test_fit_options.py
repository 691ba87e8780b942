"""Wrong knobs are refused with one line; the learning rate and the batch arithmetic are as written down."""

import math
from typing import Any

import pytest

from referee.config.reward_training import AugmentConfig, EarlyStopConfig
from referee.errors import RefereeError
from referee.training.options import FitOptions
from referee.training.schedule import factor


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"optimizer": "sgd"}, "adamw"),
        ({"schedule": "linear"}, "cosine"),
        ({"sampling": "other"}, "balanced"),
        ({"best_metric": "auroc"}, "val_auroc"),
        ({"lr": 0.0}, "lr"),
        ({"lr": math.nan}, "lr"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"warmup_ratio": 1.0}, "warmup_ratio"),
        ({"global_batch_size": 0}, "global_batch_size"),
        ({"global_batch_size": 32, "micro_batch_size": 12}, "multiple of micro_batch_size 12"),
        ({"num_processes": 2}, "ddp"),
        ({"num_processes": 3, "training_backend": "ddp", "global_batch_size": 32}, "3 processes"),
        ({"num_processes": 2, "training_backend": "ddp", "global_batch_size": 32, "micro_batch_size": 32}, "2 proc"),
        ({"positive_weight": 2.0}, "sampling=natural"),
        ({"max_epochs": 0}, "max_epochs"),
    ],
)
def test_wrong_options(options: dict[str, Any], word: str) -> None:
    with pytest.raises(RefereeError, match=word) as caught:
        FitOptions(**options)
    assert "\n" not in str(caught.value)


def test_wrong_parts() -> None:
    with pytest.raises(RefereeError, match="random_shift"):
        AugmentConfig(random_shift=-1)
    with pytest.raises(RefereeError, match="contrast"):
        AugmentConfig(contrast=1.5)
    with pytest.raises(RefereeError, match="patience"):
        EarlyStopConfig(patience=-1)


def test_json_round_trip() -> None:
    options = FitOptions(lr=3e-4, augment=AugmentConfig(random_shift=1), early_stop=EarlyStopConfig(patience=2))
    assert FitOptions.from_json(options.to_json()) == options
    with pytest.raises(RefereeError, match="learning_rate is no option"):
        FitOptions.from_json({"learning_rate": 1.0})


def test_micro_batches() -> None:
    assert FitOptions(global_batch_size=32).chunks() == 1 and FitOptions(global_batch_size=50).chunks() == 2
    assert FitOptions(global_batch_size=32, micro_batch_size=16).chunks() == 2
    assert FitOptions(global_batch_size=32, training_backend="ddp", num_processes=2).chunks() == 2
    assert FitOptions(global_batch_size=32, micro_batch_size=8, training_backend="ddp", num_processes=2).chunks() == 4


def test_steps() -> None:
    assert FitOptions(max_epochs=3).total_steps(10) == 30
    assert FitOptions(max_epochs=3, max_steps=12).total_steps(10) == 12
    assert FitOptions(max_steps=45).total_steps(10) == 45
    assert FitOptions().total_steps(10) == 50
    assert FitOptions().total_steps(10, head_only=True) == 100


def test_learning_rate_by_hand() -> None:
    values = [factor(step, 8, schedule="cosine", warmup_steps=2) for step in range(8)]
    rise = [1 / 3, 2 / 3]
    fall = [0.5 * (1 + math.cos(math.pi * k / 6)) for k in range(6)]
    assert values == pytest.approx(rise + fall)
    assert values[2] == 1.0 and values[-1] > 0
    assert [factor(step, 4, schedule="constant", warmup_steps=1) for step in range(4)] == [0.5, 1, 1, 1]
