"""Policies that need no training: the scripted expert and uniform noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from referee.config.imports import load_attribute
from referee.envs.contract import Observation, RefereeVectorEnv
from referee.errors import RefereeError

Policy = Callable[[], np.ndarray]
"""The next actions f32[n,a] of all environments."""


class OwnPolicy:
    """A function of one's own, `module:function`: observations {name: array[n,…]} in, actions [n,a] in −1..1 out."""

    def __init__(self, env: RefereeVectorEnv, name: str, *, noise: float = 0.0, seed: int = 0) -> None:
        self._function, self._name = load_attribute(name, "runner.policy"), name
        self._shape = (env.num_envs, *(env.single_action_space.shape or ()))
        self._noise, self._random = noise, np.random.default_rng(seed)
        self._observation: Observation | None = None

    def see(self, observation: Observation) -> None:
        """What the next actions are about."""
        self._observation = observation

    def __call__(self) -> np.ndarray:
        """The next actions f32[n,a], with noise, clipped to the action space."""
        if self._observation is None:
            raise RefereeError(f"the policy {self._name} was asked for actions before it saw an observation")
        actions = np.asarray(self._function(self._observation), np.float32)
        if actions.shape != self._shape:
            raise RefereeError(f"the policy {self._name} gives actions {actions.shape}, but {self._shape} are needed")
        noise = self._noise * self._random.standard_normal(self._shape, dtype=np.float32)
        return np.clip(actions + noise, -1.0, 1.0)


def make_policy(env: RefereeVectorEnv, name: str, *, noise: float = 0.0, miss: float = 0.0, seed: int = 0) -> Policy:
    """The policy called `name` for `env`: expert, random, or module:function (see `OwnPolicy`).

    miss: metres by which every second episode of the expert aims beside its goal, at most.
    """
    if name == "random":
        random = np.random.default_rng(seed)
        shape = (env.num_envs, *env.single_action_space.shape)  # type: ignore[misc]
        return lambda: random.uniform(-1.0, 1.0, shape).astype(np.float32)
    if ":" in name:
        return OwnPolicy(env, name, noise=noise, seed=seed)
    if name != "expert":
        raise RefereeError(f"unknown policy {name!r}: choose expert, random, or module:function of your own")
    from referee.envs.franka.env import FrankaVectorEnv
    from referee.envs.franka.expert import TwinExpert
    from referee.envs.maniskill.env import ManiSkillVectorEnv
    from referee.envs.maniskill.experts import ManiSkillExpert
    from referee.envs.panda.env import PandaVectorEnv
    from referee.envs.panda.experts import Expert

    world = env.unwrapped
    if isinstance(world, FrankaVectorEnv):
        return TwinExpert(world, noise=noise, miss=miss, seed=seed)
    if isinstance(world, ManiSkillVectorEnv):
        return ManiSkillExpert(world, noise=noise, miss=miss, seed=seed)
    if not isinstance(world, PandaVectorEnv):
        raise RefereeError(
            "this environment has no scripted expert: set runner.policy=random (play: --policy random), or "
            "module:function of your own"
        )
    return Expert(world, noise=noise, miss=miss, seed=seed)


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
