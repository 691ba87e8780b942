"""The learning rate over the steps of a training."""

from __future__ import annotations

import math


def factor(step: int, total: int, *, schedule: str, warmup_steps: int) -> float:
    """What the learning rate is multiplied with at `step` (0 … total-1).

    It rises in equal parts to 1 over the warm-up; then `constant` stays there, and `cosine` falls along half a cosine,
    which would reach 0 one step after the last.
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if schedule == "constant":
        return 1.0
    done = (step - warmup_steps) / max(1, total - warmup_steps)
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
