"""Features are encoded once per content and encoder, equal the model's own, and a head learns on them as on images."""

from pathlib import Path

import numpy as np
import pytest
import torch
from training_doubles import TinyFrames, TinyModel

from referee.config.reward_training import AugmentConfig
from referee.training.features import cached_features, content_hash, forget
from referee.training.fit import fit
from referee.training.options import NO_AUGMENTATION, FitOptions
from referee.training.source import ImageSource


def test_features_are_those_of_the_model_and_made_once(tmp_path: Path) -> None:
    model, frames = TinyModel(frozen=True), TinyFrames(150)
    encoded: list[int] = []
    first = cached_features(model, frames, content_hash(frames), tmp_path, progress=encoded.append)  # type: ignore[arg-type]
    assert sum(encoded) == 150
    with torch.no_grad():
        wanted = model.eval().encode(model.prepare(frames.images))
    torch.testing.assert_close(first.inputs(np.arange(150), None), wanted, rtol=0, atol=1e-6)
    again = cached_features(model, frames, content_hash(frames), tmp_path, progress=encoded.append)  # type: ignore[arg-type]
    assert sum(encoded) == 150 and len(list(tmp_path.iterdir())) == 1
    np.testing.assert_array_equal(again.inputs(np.arange(9), None), first.inputs(np.arange(9), None))


def test_another_frame_or_encoder_is_another_file_but_another_head_is_not(tmp_path: Path) -> None:
    model, frames = TinyModel(frozen=True), TinyFrames(20)

    def files() -> int:
        cached_features(model, frames, content_hash(frames), tmp_path)  # type: ignore[arg-type]
        return len(list(tmp_path.iterdir()))

    assert files() == 1
    with torch.no_grad():
        model.last.weight += 1
    assert files() == 1
    with torch.no_grad():
        model.encoder[0].weight[0, 0, 0, 0] += 1
    assert files() == 2
    frames.images[0, 0, 0, 0] += 1
    assert files() == 3


def test_copies_are_changed_and_mixed(tmp_path: Path) -> None:
    model, frames = TinyModel(frozen=True), TinyFrames(20)
    options = AugmentConfig(random_shift=2)
    source = cached_features(model, frames, "x", tmp_path, copies=2, augmentation=options)  # type: ignore[arg-type]
    plain = source.inputs(np.arange(20), None)
    mixed = source.inputs(np.arange(20), np.random.default_rng(0))
    equal = (plain == mixed).all(1)
    assert 0 < int(equal.sum()) < 20
    assert len(list(tmp_path.iterdir())) == 3


def test_a_head_learns_on_features_as_on_images(tmp_path: Path) -> None:
    options = FitOptions(lr=0.05, global_batch_size=16, max_epochs=5, augment=NO_AUGMENTATION, num_threads=1)
    train, val = TinyFrames(60), TinyFrames(40, seed=1)
    slow, fast = TinyModel(frozen=True), TinyModel(frozen=True)
    a = fit(slow, ImageSource(train), ImageSource(val), options)  # type: ignore[arg-type]
    sides = [cached_features(fast, each, content_hash(each), tmp_path) for each in (train, val)]  # type: ignore[arg-type]
    b = fit(fast, *sides, options, head_only=True)  # type: ignore[arg-type]
    assert a.best.val is not None and b.best.val is not None
    assert a.best.val.loss == pytest.approx(b.best.val.loss, abs=1e-4)
    for name, value in a.state.items():
        torch.testing.assert_close(b.state[name], value, rtol=1e-3, atol=1e-4)


def test_old_features_are_forgotten(tmp_path: Path) -> None:
    model, frames = TinyModel(frozen=True), TinyFrames(20)
    for number in range(3):
        cached_features(model, frames, str(number), tmp_path)  # type: ignore[arg-type]
    one = next(tmp_path.iterdir()).stat().st_size
    forget(tmp_path, keep_bytes=2 * one)
    assert len(list(tmp_path.iterdir())) == 2
