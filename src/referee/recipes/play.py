"""Recipe: a short film of a policy."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from referee.config.gym import GymEnvConfig
from referee.config.maniskill import ManiSkillEnvConfig
from referee.config.schema import PandaEnvConfig
from referee.envs import RefereeVectorEnv, make_vec
from referee.envs.gym.env import find_spec
from referee.envs.policies import make_policy
from referee.errors import RefereeError
from referee.learn.roll_out import FilmMaker, roll_out
from referee.metrics import Rate
from referee.pictures import check_writable, save_gif
from referee.recipes.trained import bring_back


def play(
    task: str,
    policy: str,
    *,
    out: Path,
    episodes: int,
    noise: float,
    seed: int,
    pixels: int,
    trained: Path | None = None,
) -> Rate:
    """Write a GIF of `episodes` episodes of a policy; returns how many ended in success.

    With `trained`, a checkpoint or a run, its policy plays in its own task; `task`, `policy` and `noise` do not count.
    """
    if out.suffix.lower() != ".gif":
        raise RefereeError(f"--out {out} is not a GIF: give a name that ends with .gif")
    if episodes < 1:
        raise RefereeError(f"--episodes is {episodes}, but at least one is needed")
    if not 32 <= pixels <= 1024:
        raise RefereeError(f"--size is {pixels}, but it must lie in 32..1024")
    if seed < 0:
        raise RefereeError(f"--seed is {seed}, but it must be 0 or more")
    check_writable(out)
    if trained is not None:
        env: RefereeVectorEnv
        env, actor = bring_back(trained, episodes)
        _check_film(env, "referee eval measures its success without a film")
        film = FilmMaker(env, episodes, pixels=pixels)
        outcomes = roll_out(env, actor, episodes, seed=seed, watch=film, observe=actor.see)
    else:
        env = make_vec(_stage(task, episodes))
        _check_film(env, "give another --task")
        film, chosen = FilmMaker(env, episodes, pixels=pixels), make_policy(env, policy, noise=noise, seed=seed)
        observe = getattr(chosen, "see", None)
        outcomes = roll_out(env, chosen, episodes, seed=seed, watch=film, observe=observe)
    save_gif(out, film.frames())
    env.close()
    return outcomes.rate()


def _check_film(env: RefereeVectorEnv, fix: str) -> None:
    """One line where nothing can be filmed."""
    world = env.unwrapped
    if not world.can_film:
        env.close()
        why = f" ({world.undrawn})" if world.undrawn else ""
        raise RefereeError(f"{world.task_description.rstrip('.')}: nothing draws it{why}, so there is no film: {fix}")


def _stage(task: str, episodes: int) -> PandaEnvConfig | ManiSkillEnvConfig | GymEnvConfig:
    """The world of a task: an id with a version is one of Gymnasium or ManiSkill, other names are the Panda's."""
    if re.fullmatch(r".+-v\d+", task) is None:
        return PandaEnvConfig(task=task, num_envs=episodes)
    if _of_gymnasium(task):
        return GymEnvConfig(id=task, num_envs=episodes, num_processes=1)
    return ManiSkillEnvConfig(
        task=task,
        num_envs=episodes,
        control_mode="pd_ee_delta_pos",
        cameras=("front",),
        image_size=224,
        shader="unlit",
        light_scene=True,
    )


def _of_gymnasium(task: str) -> bool:
    """Whether it is an id of Gymnasium: `module:Name-v0`, or registered, and not by ManiSkill."""
    maniskill = sys.modules.get("mani_skill.utils.registration")
    if maniskill is not None and task in maniskill.REGISTERED_ENVS:
        return False
    try:
        find_spec(task)
    except RefereeError:
        return ":" in task  # whoever makes it says what is wrong
    return True
