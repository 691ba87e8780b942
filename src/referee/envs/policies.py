"""Policies that need no training: the scripted expert and uniform noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from referee.envs.contract import RefereeVectorEnv
from referee.errors import RefereeError

Policy = Callable[[], np.ndarray]
"""The next actions f32[n,a] of all environments."""


def make_policy(env: RefereeVectorEnv, name: str, *, noise: float = 0.0, seed: int = 0) -> Policy:
    """The policy called `name` (expert or random) for `env`."""
    if name == "random":
        random = np.random.default_rng(seed)
        shape = (env.num_envs, *env.single_action_space.shape)  # type: ignore[misc]
        return lambda: random.uniform(-1.0, 1.0, shape).astype(np.float32)
    if name != "expert":
        raise RefereeError(f"unknown policy {name!r}: choose expert or random")
    from referee.envs.panda.env import PandaVectorEnv
    from referee.envs.panda.experts import Expert

    if not isinstance(env, PandaVectorEnv):
        raise RefereeError("only the Panda tasks have a scripted expert: choose --policy random, or a panda env")
    return Expert(env, noise=noise, seed=seed)
