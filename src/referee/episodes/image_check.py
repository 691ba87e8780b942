"""Pictures that show nothing: black, constant, or the same from the first frame to the last."""

from __future__ import annotations

import numpy as np

from referee.episodes.episode import Episode

SAMPLES = 4
"""Frames of an episode that are looked at."""


def image_fault(episode: Episode) -> str | None:
    """What is wrong with the pictures of an episode, by a few of its frames; None if nothing is."""
    views = episode.observations.get("main_images")
    extra = episode.observations.get("extra_view_images")
    if views is None or not len(views):
        return None
    rows = np.unique(np.linspace(0, len(views) - 1, SAMPLES).round().astype(int))
    cameras = [views, *(extra[:, i] for i in range(extra.shape[1]))] if extra is not None else [views]
    names = episode.meta.cameras or tuple(f"view {i}" for i in range(len(cameras)))
    for name, frames in zip(names, cameras, strict=False):
        sample = np.stack([frames[row] for row in rows])
        if not sample.any():
            return f"pictures of {name} are black"
        if all(image.min() == image.max() for image in sample):
            return f"pictures of {name} are of one colour"
        if len(sample) > 1 and (sample == sample[0]).all():
            return f"pictures of {name} do not change within an episode"
    return None
