"""Episodes for tests: small, with every kind of array."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from referee.episodes import Episode, Meta


def make_episode(
    steps: int = 5, *, pixels: int = 8, extra_views: int = 1, seed: int = 0, success_from: int | None = 3, **meta: Any
) -> Episode:
    """A valid episode of random arrays, a success from state `success_from` on (None: never)."""
    random = np.random.default_rng(seed)
    n = steps + 1
    observations = {"states": random.normal(size=(n, 4)).astype(np.float32)}
    cameras: tuple[str, ...] = ()
    if pixels:
        cameras = ("front", "side", "wrist", "top")[: 1 + extra_views]
        observations["main_images"] = random.integers(0, 256, (n, pixels, pixels, 3), dtype=np.uint8)
        observations["extra_view_images"] = random.integers(0, 256, (n, extra_views, pixels, pixels, 3), dtype=np.uint8)
    truncated = np.zeros(steps, bool)
    truncated[-1:] = True
    success = np.arange(n) >= (n if success_from is None else success_from)
    return Episode(
        observations,
        random.uniform(-1, 1, (steps, 3)).astype(np.float32),
        random.normal(size=steps).astype(np.float32),
        np.zeros(steps, bool),
        truncated,
        success,
        {"grasp": random.random(n) < 0.5, "progress": np.linspace(0, 1, n, dtype=np.float32)},
        Meta(**{"task": "PickCube", "description": "Pick it.", "source": "expert", "cameras": cameras, **meta}),
    )


@st.composite
def episodes(draw: Any) -> Episode:
    """Valid episodes of many shapes."""
    return make_episode(
        draw(st.integers(1, 9)),
        pixels=draw(st.sampled_from([0, 4, 7])),
        extra_views=draw(st.integers(0, 2)),
        seed=draw(st.integers(0, 1000)),
        success_from=draw(st.none() | st.integers(0, 10)),
        env=draw(st.integers(0, 3)),
        episode=draw(st.integers(0, 99)),
    )


def assert_same(a: Episode, b: Episode) -> None:
    """Equal arrays, bit for bit, and equal meta."""
    assert a.arrays().keys() == b.arrays().keys()
    for name, array in a.arrays().items():
        assert array.dtype == b.arrays()[name].dtype, name
        np.testing.assert_array_equal(array, b.arrays()[name], err_msg=name)
    assert a.meta == b.meta
