"""Recipe: bring a trained policy back, to judge it or to film it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from referee.config.arm import FrankaEnvConfig, RobotConfig
from referee.config.gym import ArgumentConfig, CustomEnvConfig, GymEnvConfig
from referee.config.maniskill import ManiSkillEnvConfig
from referee.config.schema import EnvConfig, PandaEnvConfig, RandomiseConfig
from referee.envs import RefereeVectorEnv
from referee.errors import RefereeError
from referee.learn.environments import make_env
from referee.learn.evaluation import EVAL_SEED
from referee.learn.roll_out import Outcomes, roll_out
from referee.rl import checkpoint
from referee.rl.policy import Player

TWINS = 8
"""That are judged side by side: each draws for itself."""


def bring_back(place: Path, num_envs: int, *, noise_seed: int | None = None) -> tuple[RefereeVectorEnv, Player]:
    """The environment of a checkpoint (or of a run's last one) and its policy in it."""
    folder = checkpoint.find(place)
    policy, meta = checkpoint.load_policy(folder)
    env = make_env(_world(meta, num_envs), Path(), "eval")
    return env, Player(policy, env, noise_seed=noise_seed)


def _world(meta: dict[str, Any], num_envs: int) -> EnvConfig:
    """The world that a policy was trained in, with so many environments and episodes as long as its evaluations'.

    A policy of an arm is judged on a twin: no arm moves because somebody asks for numbers.
    """
    settings: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in meta["env"].items()
    }
    steps = meta.get("eval_episode_steps", settings["max_episode_steps"])
    settings |= {"task": meta["task"], "num_envs": num_envs, "max_episode_steps": steps}
    kind = meta.get("env_type")
    if kind == "franka":
        robot = RobotConfig(driver="twin", realtime=False, scene=meta["scene"])
        return FrankaEnvConfig(robot=robot, **{**settings, "num_envs": min(num_envs, TWINS)})
    if kind in ("gymnasium", "custom"):
        given = settings["kwargs"] or {}
        settings["kwargs"] = {name: ArgumentConfig(**value) for name, value in given.items()} or None
        if kind == "custom":
            return CustomEnvConfig(**settings)
        return GymEnvConfig(**{name: value for name, value in settings.items() if name != "task"})
    if kind == "maniskill":
        return ManiSkillEnvConfig(**settings)
    return PandaEnvConfig(**{**settings, "randomise": RandomiseConfig(**settings["randomise"])})


def judge(place: Path, episodes: int, *, seed: int = EVAL_SEED, stochastic: bool = False) -> Outcomes:
    """Success of a checkpoint over `episodes` episodes, with its mean actions or with its exploration noise."""
    if episodes < 1:
        raise RefereeError(f"--episodes is {episodes}, but at least one is needed")
    if seed < 0:
        raise RefereeError(f"--seed is {seed}, but it must be 0 or more")
    env, policy = bring_back(place, min(64, episodes), noise_seed=seed if stochastic else None)
    outcomes = roll_out(env, policy, episodes, seed=seed, observe=policy.see)
    env.close()
    return outcomes
