"""Shifts and colours against a slow reference and against Pillow, and determinism of the draws."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from referee.config.reward_training import AugmentConfig
from referee.training.augment import augment, coloured, draw, saturated, shifted
from referee.training.options import NO_AUGMENTATION


def pictures(count: int = 3, views: int = 2, pixels: int = 8, seed: int = 0) -> torch.Tensor:
    random = np.random.default_rng(seed)
    return torch.from_numpy(random.integers(0, 256, (count, views, pixels, pixels, 3), dtype=np.uint8))


@settings(max_examples=30, deadline=None)
@given(st.integers(-4, 4), st.integers(-4, 4), st.integers(0, 99))
def test_shift_repeats_the_rim(down: int, right: int, seed: int) -> None:
    images = pictures(1, 1, seed=seed)
    moved = shifted(images, np.array([[[down, right]]]))[0, 0]
    for y in range(8):
        for x in range(8):
            wanted = images[0, 0, min(7, max(0, y - down)), min(7, max(0, x - right))]
            assert moved[y, x].tolist() == wanted.tolist()


def test_views_move_for_themselves() -> None:
    images = pictures(1, 2)
    moved = shifted(images, np.array([[[1, 0], [0, -2]]]))
    np.testing.assert_array_equal(moved[0, 0, 1:], images[0, 0, :-1])
    np.testing.assert_array_equal(moved[0, 1, :, :-2], images[0, 1, :, 2:])


@pytest.mark.parametrize(("place", "enhance"), [(0, ImageEnhance.Brightness), (2, ImageEnhance.Color)])
def test_colours_as_in_pillow(place: int, enhance: type) -> None:
    images = pictures(4, 1, 16)
    factors = np.ones((4, 3), np.float32)
    factors[:, place] = [0.5, 0.9, 1.2, 1.6]
    changed = coloured(images, factors)
    for image, result, factor in zip(images[:, 0].numpy(), changed[:, 0].numpy(), factors[:, place], strict=True):
        wanted = np.asarray(enhance(Image.fromarray(image)).enhance(float(factor)))
        assert np.abs(result.astype(int) - wanted).max() <= 2  # Pillow rounds its grey, we do not


def test_contrast_by_hand() -> None:
    images = torch.tensor([[10, 20, 30], [40, 50, 60]], dtype=torch.uint8).reshape(1, 1, 1, 2, 3)
    changed = coloured(images, np.array([[1.0, 2.0, 1.0]], np.float32))
    assert changed.flatten().tolist() == [0, 5, 25, 45, 65, 85]  # the mean is 35
    both = coloured(images, np.array([[2.0, 0.5, 1.0]], np.float32))
    assert both.flatten().tolist() == [45, 55, 65, 75, 85, 95]


def test_no_saturation_is_grey() -> None:
    grey = saturated(pictures(), np.zeros(3, np.float32))
    assert (grey[..., 0] == grey[..., 1]).all() and (grey[..., 1] == grey[..., 2]).all()


def test_draws_are_bounded_and_repeatable() -> None:
    options = AugmentConfig(random_shift=2, brightness=0.2, contrast=0.1, saturation=0.3)
    draws = draw(500, 2, options, np.random.default_rng(7))
    assert set(np.unique(draws.shift)) == {-2, -1, 0, 1, 2}
    low, high = draws.colour.min(0), draws.colour.max(0)
    assert (np.abs(low - [0.8, 0.9, 0.7]) < 0.01).all() and (np.abs(high - [1.2, 1.1, 1.3]) < 0.01).all()
    images = pictures()
    first, again = (augment(images, options, np.random.default_rng(3)) for _ in range(2))
    assert torch.equal(first, again) and not torch.equal(first, images)
    assert first.dtype == torch.uint8 and first.shape == images.shape


def test_nothing_to_do() -> None:
    images = pictures()
    assert augment(images, NO_AUGMENTATION, np.random.default_rng(0)) is images
    single = augment(images[:, 0], AugmentConfig(), np.random.default_rng(0))
    assert single.shape == images[:, 0].shape
