"""The contact sheet of all tasks: what success and failure look like to a model and to a person."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from referee.config.schema import PandaEnvConfig
from referee.envs.panda.env import PandaVectorEnv
from referee.envs.panda.tasks import TASKS
from referee.envs.policies import make_policy
from referee.pictures import atomic_save, border, check_writable, contact_sheet

GREEN, RED = (34, 160, 76), (196, 62, 52)
HEADINGS = ("start", "on the way", "failure", "success", "scene")


def task_sheet(path: Path, config: PandaEnvConfig, *, seed: int = 0, tile: int = 192) -> None:
    """Write a PNG with two rows per task, one per camera, of frames at the configured image size."""
    check_writable(path)
    rows: list[tuple[str, list[np.ndarray]]] = []
    for name in TASKS:
        rows += _task_rows(name, config, seed)
    size = f"{config.image_size} px"
    title = f"Referee: the tasks as a reward model sees them ({size}; green rim: success, red rim: failure)"
    atomic_save(contact_sheet(rows, HEADINGS, title=title, tile=tile), path)


def _task_rows(name: str, config: PandaEnvConfig, seed: int) -> list[tuple[str, list[np.ndarray]]]:
    """Env 0 is led by the expert, env 1 by an expert that is too noisy to arrive."""
    env = PandaVectorEnv(
        replace(
            config,
            task=name,
            num_envs=2,
            cameras=("front", "side"),
            terminate_on_success=False,
            obs_mode="state",
        )
    )
    _, info = env.reset(seed=seed)
    expert, stray = make_policy(env, "expert"), make_policy(env, "expert", noise=2.0, seed=seed)
    pictures = [_views(env, 0, None)]
    for step in range(env.max_episode_steps - 1):
        actions = expert()
        actions[1] = stray()[1]
        _, _, _, _, info = env.step(actions)
        if step == 6:
            pictures.append(_views(env, 0, None))
    pictures.append(_views(env, 1, bool(info["success"][1])))
    pictures.append(_views(env, 0, bool(info["success"][0])))
    scene = env.render_film([0], pixels=384)[0]
    env.close()
    return [
        (name, [views[0] for views in pictures] + [scene]),
        (f"{name}, side", [views[1] for views in pictures]),
    ]


def _views(env: PandaVectorEnv, i: int, success: bool | None) -> list[np.ndarray]:
    images = env.render_cameras([i])
    views = [images["main_images"][0], images["extra_view_images"][0, 0]]
    if success is None:
        return views
    return [border(view, GREEN if success else RED, max(1, env.image_size // 64)) for view in views]
