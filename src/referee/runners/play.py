"""Recipe: a short film of a policy."""

from __future__ import annotations

import re
from pathlib import Path

from referee.config.maniskill import ManiSkillEnvConfig
from referee.config.schema import PandaEnvConfig
from referee.envs import RefereeVectorEnv, make_vec
from referee.envs.policies import make_policy
from referee.errors import RefereeError
from referee.learn.roll_out import FilmMaker, roll_out
from referee.metrics import Rate
from referee.pictures import check_writable, save_gif
from referee.runners.trained import bring_back


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
        film = FilmMaker(env, episodes, pixels=pixels)
        outcomes = roll_out(env, actor, episodes, seed=seed, watch=film, observe=actor.see)
    else:
        env = make_vec(_stage(task, episodes))
        film = FilmMaker(env, episodes, pixels=pixels)
        outcomes = roll_out(env, make_policy(env, policy, noise=noise, seed=seed), episodes, seed=seed, watch=film)
    save_gif(out, film.frames())
    env.close()
    return outcomes.rate()


def _stage(task: str, episodes: int) -> PandaEnvConfig | ManiSkillEnvConfig:
    """The world of a task: ManiSkill's ids end with a version, the names of the embedded Panda's do not."""
    if re.fullmatch(r".+-v\d+", task) is None:
        return PandaEnvConfig(task=task, num_envs=episodes)
    return ManiSkillEnvConfig(
        task=task,
        num_envs=episodes,
        control_mode="pd_ee_delta_pos",
        cameras=("front",),
        image_size=224,
        shader="unlit",
        light_scene=True,
    )
