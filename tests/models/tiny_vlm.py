"""A very small Qwen3-VL and windows to show it, for the tests of everything that asks one."""

from pathlib import Path

import numpy as np

from referee.models.vlm.tiny import TinyOptions, tiny_init
from referee.models.window import Window

SMALL = TinyOptions(hidden=32, layers=1, heads=2, vision_hidden=32, vision_depth=1, patch=16, image_size=32)
TASK = "Pick up the red cube and hold it in the green ball."


def small_vlm(folder: Path, seed: int = 0, **changes: int) -> Path:
    """A model of some ten thousand parameters."""
    tiny_init(folder, TinyOptions(**{**vars(SMALL), "seed": seed, **changes}))
    return folder


def window(seed: int = 0, frames: int = 5, size: int = 32, task: str = TASK) -> Window:
    """Noise from two cameras."""
    random = np.random.default_rng(seed)
    main = random.integers(0, 256, (frames, size, size, 3), dtype=np.uint8)
    extra = random.integers(0, 256, (frames, 1, size, size, 3), dtype=np.uint8)
    return Window({"main_images": main, "extra_view_images": extra}, task)
