"""A short history of one environment, as models that judge trends see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Window:
    """The last k frames of one environment, the oldest first."""

    frames: Mapping[str, np.ndarray]
    """By observation key: `main_images` uint8[k,H,W,3], `extra_view_images` uint8[k,V,H,W,3]; views, not copies."""
    task: str
    """What is to be done, in words; never what came of it."""

    def __len__(self) -> int:
        return len(next(iter(self.frames.values())))

    def backwards(self) -> Window:
        """The same frames, the newest first."""
        return Window({name: value[::-1] for name, value in self.frames.items()}, self.task)
