"""What fetch.py adds to gymnasium-robotics' Fetch: two close cameras, and scripted policies that err on purpose."""

import os
from typing import Any

from referee.envs.gym.share import choose_renderer

choose_renderer()  # MuJoCo decides how to draw when it is imported
os.environ.setdefault("LP_NUM_THREADS", "0")  # software drivers of a small picture are faster without threads

import mujoco  # noqa: E402 - after the driver
import numpy as np  # noqa: E402

PIXELS = 64
VIEWS = {"front": (180.0, -15.0), "side": (90.0, -15.0)}
"""Azimuth and elevation: one shows left and right, the other near and far."""
DISTANCE = 0.5
SHAKE = 0.6


_renderers: dict[type, mujoco.Renderer] = {}


def views(env: Any) -> dict[str, np.ndarray]:
    """Both pictures of the present state, uint8[64,64,3], which is not touched; the cameras move with the gripper."""
    world = env.unwrapped
    kind = type(world)
    if kind not in _renderers:  # one per process: environments of a kind have equal models
        world.model.vis.quality.offsamples = 0  # half the time, and at this size the same picture
        _renderers[kind] = mujoco.Renderer(world.model, PIXELS, PIXELS)
    renderer = _renderers[kind]
    world.data.site_xpos[world.model.site("target0").id] = world.goal
    pictures = {}
    for name, (azimuth, elevation) in VIEWS.items():
        camera = mujoco.MjvCamera()
        camera.azimuth, camera.elevation, camera.distance = azimuth, elevation, DISTANCE
        camera.lookat[:] = world.data.site("robot0:grip").xpos
        renderer.update_scene(world.data, camera=camera)
        pictures[name] = renderer.render()
    return pictures


def _errors(goal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of an episode, by its goal: how much its actions shake f32[n,1], and by how much it misses the goal f32[n,3].

    Half of the episodes aim 4 to 12 cm beside the goal: near misses are what a reward model must tell from successes.
    """
    digits = np.abs(goal * 1e4)[:, :, None] // np.array([1.0, 1e-1]) % 97 / 97  # n,3,2: even numbers in 0..1
    shake = SHAKE * digits[:, :1, 0]
    direction = digits[:, :, 1] - 0.5
    direction /= np.linalg.norm(direction, axis=1, keepdims=True) + 1e-6
    miss = np.where(digits[:, 1:2, 0] < 0.5, 0.0, 0.04 + 0.08 * digits[:, 2:, 0])
    return shake, miss * direction


_random = np.random.default_rng(0)


def _noisy(actions: np.ndarray, shake: np.ndarray) -> np.ndarray:
    noise = shake * _random.standard_normal(actions.shape)
    return np.clip(actions + noise, -1.0, 1.0).astype(np.float32)


def reach(observations: dict[str, np.ndarray]) -> np.ndarray:
    """Moves the gripper to the target, or beside it. States: 10 of the robot, achieved goal, desired goal."""
    states = observations["states"]
    grip, goal = states[:, :3], states[:, -3:]
    shake, miss = _errors(goal)
    move = (goal + miss - grip) / 0.05
    return _noisy(np.column_stack([move, np.zeros(len(move))]), shake)


def push(observations: dict[str, np.ndarray]) -> np.ndarray:
    """Goes behind the block and pushes it to the target, or beside it. States: 25, achieved goal, desired goal."""
    states = observations["states"]
    grip, block, goal = states[:, :3], states[:, 25:28], states[:, 28:31]
    shake, miss = _errors(goal)
    goal = goal + miss * [1, 1, 0]
    way = (goal - block)[:, :2]
    left = np.linalg.norm(way, axis=1, keepdims=True)
    way = way / (left + 1e-6)
    offset = grip[:, :2] - block[:, :2]
    along = (offset * way).sum(axis=1, keepdims=True)
    aside = offset - along * way
    level = block[:, 2:]
    behind = (along < -0.03) & (np.linalg.norm(aside, axis=1, keepdims=True) < 0.015)
    low = grip[:, 2:] < level + 0.02
    pushing = behind & low
    start = block[:, :2] - 0.1 * way
    there = behind | (np.linalg.norm(start - grip[:, :2], axis=1, keepdims=True) < 0.02)
    across = np.where(pushing, np.minimum(left, 0.03) * way * 10 - 20 * aside, (start - grip[:, :2]) / 0.05)
    down = (level + np.where(there, 0.0, 0.1) - grip[:, 2:]) / 0.05
    across = np.where(there & ~low, 0.3 * across, across)
    near = np.linalg.norm(start - grip[:, :2], axis=1, keepdims=True)
    across = np.where(~there & (grip[:, 2:] < level + 0.06), 0.0 * near, across)  # rise before going round
    move = np.where(left < 0.015, 0.0, np.column_stack([across, down]))
    return _noisy(np.column_stack([move, np.zeros(len(move))]), shake * np.where(left < 0.015, 0.3, 1.0))
