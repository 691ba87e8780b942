"""What protects a policy that training starts from, where the keys leave it open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from referee.config.leaves import Leaves, Path

TARGET_KL = 0.01
DEFAULTS: dict[Path, tuple[Any, Any]] = {
    ("algorithm", "target_kl"): (TARGET_KL, None),
    ("algorithm", "freeze_normaliser"): (True, False),
}
"""Values with a policy to start from, and without."""


def decide_fine_tuning(leaves: Leaves) -> Leaves:
    """The same, with values for PPO where these keys are null."""
    if leaves["runner", "recipe"].value != "train_policy" or leaves["algorithm", "name"].value != "ppo":
        return leaves
    episodes = leaves["algorithm", "bc_warmup", "episodes"].value
    given = leaves["actor", "model", "model_path"].value is not None or (isinstance(episodes, int) and episodes > 0)
    decided = {
        path: replace(leaves[path], value=with_policy if given else without)
        for path, (with_policy, without) in DEFAULTS.items()
        if path in leaves and leaves[path].value is None
    }
    return leaves | decided
