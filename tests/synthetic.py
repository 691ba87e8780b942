"""Small recordings as arrays: a square crosses the picture, and in every other episode it turns green on its way."""

from __future__ import annotations

import numpy as np


def square_films(
    episodes: int, *, seed: int, states: int = 12, pixels: int = 32
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Frames uint8[N,H,W,3] over noise, labels int[N] (1 where the square is green), and the episode int[N] of each."""
    random = np.random.default_rng(seed)
    count = episodes * states
    frames = random.integers(0, 90, (count, pixels, pixels, 3)).astype(np.uint8)
    labels, groups = np.zeros(count, int), np.repeat(np.arange(episodes), states)
    for episode in range(episodes):
        reached = states if episode % 2 else int(random.integers(states // 2, states - 1))
        for state in range(states):
            row, place = episode * states + state, 4 + 2 * state % (pixels - 12)
            labels[row] = state >= reached
            frames[row, 8:16, place : place + 8] = (40, 255, 40) if labels[row] else (120, 60, 60)
    return frames, labels, groups
