"""What a pool of worlds and its worker processes share: what a task is like, and arrays in memory that both map."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from referee.config.maniskill import ManiSkillEnvConfig


@dataclass(frozen=True)
class Facts:
    """What one learns of a task by making it."""

    state_size: int
    proprio_size: int
    action_size: int
    relative: list[bool]
    """Of each entry of an action: whether it asks for a motion (an arm), not for a position (a gripper)."""
    control_hz: int
    grasp: bool
    progress: bool
    description: str


def parse_config(made: Mapping[str, Any]) -> ManiSkillEnvConfig:
    """A configuration that came as JSON; recording is no business of those who simulate."""
    settings = {name: value for name, value in made.items() if name != "data_collection"}
    return ManiSkillEnvConfig(**{**settings, "cameras": tuple(settings["cameras"])})


class Arrays:
    """Named arrays, one row per environment: what is asked of the worlds, and what they answer."""

    elapsed: np.ndarray
    """i64[n]: steps of the present episodes."""
    actions: np.ndarray
    """f32[n,T,a]: all actions of the present episodes, from which a state can be had again."""
    states: np.ndarray
    """f32[n,d]"""
    rewards: np.ndarray
    """f64[n]"""
    success: np.ndarray
    """bool[n]"""
    grasp: np.ndarray
    """bool[n], where it means something."""
    progress: np.ndarray
    """f32[n] in 0..1, where it was asked for."""
    images: np.ndarray
    """u8[n,V,S,S,3]: pictures that were asked for, in the order asked."""

    def __init__(self, config: ManiSkillEnvConfig, facts: Facts, memory: mmap.mmap | None = None) -> None:
        start = 0
        for name, shape, kind in _shapes(config, facts):
            size = math.prod(shape) * kind.itemsize
            array = np.zeros(shape, kind) if memory is None else np.ndarray(shape, kind, memory, offset=start)
            setattr(self, name, array)
            start += -(-size // 64) * 64

    @staticmethod
    def size(config: ManiSkillEnvConfig, facts: Facts) -> int:
        """Bytes that all of them take."""
        return sum(-(-math.prod(shape) * kind.itemsize // 64) * 64 for _, shape, kind in _shapes(config, facts))


def _shapes(config: ManiSkillEnvConfig, facts: Facts) -> Iterator[tuple[str, tuple[int, ...], np.dtype[Any]]]:
    n, pixels = config.num_envs, config.image_size
    yield "elapsed", (n,), np.dtype(np.int64)
    yield "actions", (n, config.max_episode_steps, facts.action_size), np.dtype(np.float32)
    yield "states", (n, facts.state_size), np.dtype(np.float32)
    yield "rewards", (n,), np.dtype(np.float64)
    yield "success", (n,), np.dtype(bool)
    yield "grasp", (n,), np.dtype(bool)
    yield "progress", (n,), np.dtype(np.float32)
    yield "images", (n, len(config.cameras), pixels, pixels, 3), np.dtype(np.uint8)
