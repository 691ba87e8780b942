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
    from referee.envs.franka.env import FrankaVectorEnv
    from referee.envs.franka.expert import TwinExpert
    from referee.envs.maniskill.env import ManiSkillVectorEnv
    from referee.envs.maniskill.experts import ManiSkillExpert
    from referee.envs.panda.env import PandaVectorEnv
    from referee.envs.panda.experts import Expert

    world = env.unwrapped
    if isinstance(world, FrankaVectorEnv):
        return TwinExpert(world, noise=noise, seed=seed)
    if isinstance(world, ManiSkillVectorEnv):
        return ManiSkillExpert(world, noise=noise, seed=seed)
    if not isinstance(world, PandaVectorEnv):
        raise RefereeError("this environment has no scripted expert: choose the policy random")
    return Expert(world, noise=noise, seed=seed)


def demonstrations(
    env: RefereeVectorEnv, episodes: int, *, noise: float, seed: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Observations [n, …] and actions f32[n,a] of whole episodes with the expert.

    The expert stumbles by `noise`, but what is kept is the action that it meant: so the way back is shown, too.
    """
    observation, _ = env.reset(seed=seed)
    expert = make_policy(env, "expert")
    random = np.random.default_rng(seed)
    kept: dict[str, list[np.ndarray]] = {name: [] for name in observation}
    meant: list[np.ndarray] = []
    for left in range(episodes, 0, -env.num_envs):
        rows = slice(0, min(left, env.num_envs))
        for _ in range(env.max_episode_steps):
            actions = expert()
            for name, value in observation.items():
                kept[name].append(value[rows].copy())
            meant.append(actions[rows].copy())
            stumble = noise * random.standard_normal(actions.shape, dtype=np.float32)
            observation, *_ = env.step(np.clip(actions + stumble, -1.0, 1.0))
    return {name: np.concatenate(parts) for name, parts in kept.items()}, np.concatenate(meant)
