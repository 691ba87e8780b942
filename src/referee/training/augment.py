"""Random shifts and colours of image batches; all draws come from a generator, before any pixel is touched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from referee.config.reward_training import AugmentConfig

GREY = (0.299, 0.587, 0.114)
"""How bright red, green and blue look."""


@dataclass(frozen=True)
class Draws:
    """What happens to each of n samples with V views."""

    shift: np.ndarray
    """int64[n,V,2]: down and right, in pixels."""
    colour: np.ndarray
    """f32[n,3]: factors of brightness, contrast and saturation, the same for all views of a sample."""


def draw(count: int, views: int, options: AugmentConfig, random: np.random.Generator) -> Draws:
    """Changes for `count` samples."""
    reach = options.random_shift
    shift = random.integers(-reach, reach + 1, (count, views, 2))
    strength = np.array([options.brightness, options.contrast, options.saturation])
    colour = 1.0 + strength * random.uniform(-1.0, 1.0, (count, 3))
    return Draws(shift, colour.astype(np.float32))


def augment(images: torch.Tensor, options: AugmentConfig, random: np.random.Generator) -> torch.Tensor:
    """New images uint8[n,(V,)H,W,3] out of such; the same ones where nothing is to be changed."""
    if not options:
        return images
    single = images.ndim == 4
    views = images[:, None] if single else images
    draws = draw(len(views), views.shape[1], options, random)
    if options.random_shift:
        views = shifted(views, draws.shift)
    if options.colour:
        views = coloured(views, draws.colour)
    return views[:, 0] if single else views


def shifted(images: torch.Tensor, shift: np.ndarray) -> torch.Tensor:
    """Move each view of uint8[n,V,H,W,3] down and right by int[n,V,2] pixels; the rim is repeated."""
    pad = int(np.abs(shift).max(initial=0))
    if not pad:
        return images
    height, width = images.shape[2:4]
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (pad, pad), (pad, pad), (0, 0)), mode="edge")
    moved = np.empty(images.shape, np.uint8)
    # Slices, one by one: several times faster than any gather over three-byte pixels.
    for sample, places in enumerate((pad - shift).tolist()):
        for view, (y, x) in enumerate(places):
            moved[sample, view] = padded[sample, view, y : y + height, x : x + width]
    return torch.from_numpy(moved)


def coloured(images: torch.Tensor, factors: np.ndarray) -> torch.Tensor:
    """Change brightness, contrast and saturation of uint8[n,V,H,W,3] by f32[n,3]; values stay within 0..255.

    Saturation moves a pixel away from its own grey, contrast from the mean of its view, brightness from black.
    """
    brightness, contrast, saturation = factors.T
    if (saturation != 1).any():
        images = saturated(images, saturation)
    views = images.numpy()
    middle = views.reshape(*views.shape[:2], -1).mean(2, dtype=np.float32)
    # A view has at most 256 different values: a table of what becomes of each is several times faster than floats.
    slope, offset = (brightness * contrast)[:, None], (brightness * (1 - contrast))[:, None] * middle
    values = np.arange(256, dtype=np.float32) * slope[..., None] + offset[..., None]
    tables = values.round().clip(0, 255).astype(np.uint8)
    changed = np.empty_like(views)
    for sample, view in np.ndindex(*views.shape[:2]):
        np.take(tables[sample, view], views[sample, view], out=changed[sample, view], mode="clip")
    return torch.from_numpy(changed)


def saturated(images: torch.Tensor, factors: np.ndarray) -> torch.Tensor:
    """Move each pixel of uint8[n,V,H,W,3] away from its own grey (or to it, below 1) by f32[n]."""
    strength = torch.from_numpy(np.ascontiguousarray(factors))[:, None, None]
    matrix = strength * torch.eye(3) + (1 - strength) * torch.tensor(GREY)[:, None].expand(3, 3)
    changed = torch.bmm(images.reshape(len(images), -1, 3).float(), matrix)
    return changed.round_().clamp_(0, 255).to(torch.uint8).reshape(images.shape)
