"""How large a batch of a policy's training is, where the keys leave it open."""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

from referee.config.leaves import Leaves, Path

BATCH: Path = ("actor", "global_batch_size")
MINIBATCHES = 4
"""Into which PPO cuts a rollout,"""
LARGEST = 1600
"""unless they would be larger than this."""
SAC_BATCH = 256


def decide_batch(leaves: Leaves) -> Leaves:
    """The same, with a number where `actor.global_batch_size` of a policy's training is null."""
    leaf = leaves.get(BATCH)
    if leaf is None or leaf.value is not None or leaves["runner", "recipe"].value != "train_policy":
        return leaves
    size = SAC_BATCH
    if leaves["algorithm", "name"].value == "ppo":
        shape = [_count(leaves, "env", "train", "num_envs"), _count(leaves, "algorithm", "rollout_steps")]
        if 0 in shape:  # a missing section, or a value that is refused later
            return leaves
        size = minibatch_size(shape[0] * shape[1])
    return leaves | {BATCH: replace(leaf, value=size)}


def minibatch_size(samples: int) -> int:
    """A divisor of the samples of a rollout: as near as can be to a quarter of them, or to `LARGEST`."""
    target = min(samples, MINIBATCHES * LARGEST) / MINIBATCHES
    limit = LARGEST**2  # beyond, no divisor is nearer to the target than 1 is
    lows = (low for low in range(1, min(isqrt(samples), limit) + 1) if samples % low == 0)
    divisors = (size for low in lows for size in (low, samples // low) if size <= limit)
    return min(divisors, key=lambda size: (max(size / target, target / size), size))


def _count(leaves: Leaves, *path: str) -> int:
    value = leaves[path].value if path in leaves else 0
    return max(0, value) if isinstance(value, int) else 0
