"""Success, grasp and value against states made by hand, and what a picture of a success must show."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from referee.config import PandaEnvConfig
from referee.envs.panda.env import PandaVectorEnv
from referee.envs.panda.tasks import TASKS, PegInsertion
from referee.envs.panda.world import World
from referee.envs.policies import make_policy
from referee.sim.batch import DOWN
from referee.sim.camera import Camera
from referee.sim.scene import CUBE_HALF, PEG_LENGTH, SOCKET_HEIGHT


def world(**parts: Any) -> World:
    """One state: the hand pointing down at (0.5, 0, 0.2), the cube on the table below it, unless said otherwise."""
    fingers = parts.pop("fingers", 0.04)
    plain = World(
        joints=np.array([[0.0] * 7 + [fingers] * 2]),
        speeds=np.zeros((1, 9)),
        tcp=np.array([[0.5, 0.0, 0.2]]),
        hand=DOWN[None],
        hand_quat=np.array([[0.0, 1.0, 0.0, 0.0]]),
        cube=np.array([[0.5, 0.0, CUBE_HALF]]),
        cube_quat=np.array([[1.0, 0.0, 0.0, 0.0]]),
        cube_axes=np.eye(3)[None],
        goal=np.array([[0.5, 0.1, 0.15]]),
    )
    return replace(plain, **{name: np.array([value]) for name, value in parts.items()})


def held(at: tuple[float, float, float], **parts: Any) -> World:
    return world(**{"tcp": at, "cube": at, "fingers": CUBE_HALF, **parts})


@pytest.mark.parametrize(("distance", "success"), [(0.0, True), (0.019, True), (0.021, False), (0.1, False)])
def test_reach(distance: float, success: bool) -> None:
    state = world(goal=(0.5 + distance, 0.0, 0.2))
    assert TASKS["Reach"].success(state)[0] == success


@pytest.mark.parametrize(
    ("cube", "success"),
    [
        ((0.5, 0.0, CUBE_HALF), True),
        ((0.539, 0.0, CUBE_HALF), True),
        ((0.541, 0.0, CUBE_HALF), False),
        ((0.5, 0.03, CUBE_HALF), True),
        ((0.5, 0.0, 0.06), False),  # lifted over the disc is not on it
    ],
)
def test_push_cube(cube: tuple[float, float, float], success: bool) -> None:
    assert TASKS["PushCube"].success(world(cube=cube, goal=(0.5, 0.0, 0.001)))[0] == success


def test_push_cube_success_means_wholly_on_the_disc() -> None:
    """The farthest corner of a cube at the tolerance still stands on the disc."""
    corner = np.hypot(CUBE_HALF, CUBE_HALF)
    assert 0.04 + corner < TASKS["PushCube"].scene.goal_radius


@pytest.mark.parametrize(
    ("state", "grasp"),
    [
        (held((0.5, 0.0, 0.1)), True),
        (held((0.5, 0.0, 0.1), cube=(0.516, 0.0, 0.1)), True),
        (held((0.5, 0.0, 0.1), cube=(0.52, 0.0, 0.1)), False),  # slipped out in front
        (world(tcp=(0.5, 0.0, CUBE_HALF)), False),  # between open fingers
        (world(tcp=(0.5, 0.0, CUBE_HALF), fingers=0.005), False),  # closed through where the cube should be
        (world(tcp=(0.5, 0.0, 0.2), fingers=CUBE_HALF), False),  # closed, but far above
    ],
)
def test_grasp(state: World, grasp: bool) -> None:
    assert state.grasping[0] == grasp


def test_grasp_of_a_cube_that_stands_askew() -> None:
    """Turned by 20° the cube is wider between the fingers: 2·h·(cos + sin)."""
    angle = np.deg2rad(20)
    axes = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    half_width = CUBE_HALF * (np.cos(angle) + np.sin(angle))
    at = (0.5, 0.0, 0.1)
    assert world(tcp=at, cube=at, cube_axes=axes, fingers=half_width).grasping[0]
    assert not world(tcp=at, cube=at, cube_axes=axes, fingers=half_width + 0.002).grasping[0]


@pytest.mark.parametrize(
    ("state", "success"),
    [
        (held((0.5, 0.0, 0.15), goal=(0.5, 0.0, 0.15)), True),
        (held((0.5, 0.0, 0.15), goal=(0.5, 0.024, 0.15)), True),
        (held((0.5, 0.0, 0.15), goal=(0.5, 0.026, 0.15)), False),
        (world(cube=(0.5, 0.0, 0.15), goal=(0.5, 0.0, 0.15)), False),  # thrown there, not held
    ],
)
def test_pick_cube(state: World, success: bool) -> None:
    assert TASKS["PickCube"].success(state)[0] == success


@pytest.mark.parametrize(
    ("depth", "aside", "success"),
    [(0.031, 0.0, True), (0.029, 0.0, False), (0.04, 0.002, True), (0.04, 0.01, False)],
)
def test_peg_insertion(depth: float, aside: float, success: bool) -> None:
    tcp = (0.5 + aside, 0.0, PEG_LENGTH + SOCKET_HEIGHT - depth)
    assert TASKS["PegInsertion"].success(world(tcp=tcp, goal=(0.5, 0.0, 0.0)))[0] == success


def test_success_never_looks_at_velocities() -> None:
    random = np.random.default_rng(0)
    for name, task in TASKS.items():
        still = held((0.5, 0.0, 0.15), goal=(0.5, 0.0, 0.15))
        moving = replace(still, speeds=random.normal(size=(1, 9)))
        assert task.success(still)[0] == task.success(moving)[0], name


@pytest.mark.parametrize("task", TASKS)
def test_value_and_reward_stay_in_their_range_and_success_pays_most(task: str) -> None:
    env = PandaVectorEnv(PandaEnvConfig(task=task, num_envs=32))
    env.reset(seed=0)
    expert, seen = make_policy(env, "expert", noise=0.3), set()
    for _ in range(49):
        _, rewards, _, _, info = env.step(expert())
        value = env.task.value(env.world())
        assert (value >= 0).all() and (value <= 1).all()
        np.testing.assert_allclose(rewards, np.where(info["success"], 1.0, 0.5 * value))
        seen |= set(info["success"].tolist())
    assert seen == {True, False}


@pytest.mark.parametrize("task", TASKS)
def test_the_way_of_the_expert_goes_uphill(task: str) -> None:
    """A dense reward must lead to the goal: along an expert's episode it rises clearly, in every environment."""
    env = PandaVectorEnv(PandaEnvConfig(task=task, num_envs=16))
    env.reset(seed=0)
    expert, values = make_policy(env, "expert"), []
    for _ in range(30):
        world = env.world()
        values.append(env.task.dense_reward(world, env.task.success(world)))
        env.step(expert())
    path = np.stack(values)
    assert (path[-1] > path[0] + 0.4).all()
    assert (path[15:].mean(axis=0) > path[:5].mean(axis=0) + 0.15).all()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("control_mode", ["ee_delta", "joint_delta"])
def test_the_expert_solves_its_task(task: str, control_mode: str) -> None:
    env = PandaVectorEnv(PandaEnvConfig(task=task, num_envs=100, control_mode=control_mode))
    env.reset(seed=1000)
    expert = make_policy(env, "expert")
    for _ in range(50):
        _, _, _, _, info = env.step(expert())
    assert info["final_info"]["success"].mean() >= 0.99


def test_noise_costs_success() -> None:
    rates = []
    for noise in (0.0, 0.5, 1.5):
        env = PandaVectorEnv(PandaEnvConfig(task="PickCube", num_envs=64))
        env.reset(seed=0)
        expert = make_policy(env, "expert", noise=noise, seed=1)
        for _ in range(50):
            _, _, _, _, info = env.step(expert())
        rates.append(info["final_info"]["success"].mean())
    assert rates[0] > rates[1] > rates[2]


SHOWN = {"Reach": ["goal"], "PushCube": ["goal", "cube"], "PickCube": ["goal", "cube"], "PegInsertion": ["rim", "peg"]}
GRIPPER = ["hand", "left_finger", "right_finger"]


@pytest.mark.parametrize("task", TASKS)
def test_at_success_nothing_that_matters_is_hidden_from_both_cameras(task: str) -> None:
    """At 64 px each of object, goal and gripper covers some pixels in the front or the side view."""
    env = PandaVectorEnv(PandaEnvConfig(task=task, num_envs=60))
    env.reset(seed=2000)
    expert = make_policy(env, "expert", noise=0.15)
    for _ in range(49):
        _, _, _, _, info = env.step(expert())
    ids = np.flatnonzero(info["success"])
    assert len(ids) > 20
    qpos, goal = env._sim.qpos[ids], env._goal[ids]
    with Camera(env.task.scene, ("front", "side"), 64) as camera:
        solid = camera.segment(qpos, goal, hidden=["goal"] if env.task.scene.goal == "ball" else [])
        full = camera.segment(qpos, goal)
        for thing in SHOWN[task]:
            names = [f"socket_{wall}_rim" for wall in ("xp", "xn", "yp", "yn")] if thing == "rim" else [thing]
            # The translucent ball hides nothing, so what is inside it is looked for without it.
            seen = np.isin(full if thing == "goal" else solid, [camera.geom_id(name) for name in names])
            assert seen.sum(axis=(2, 3)).max(axis=1).min() >= 4, thing
        gripper = np.isin(solid, [camera.geom_id(name) for name in GRIPPER])
        assert gripper.sum(axis=(2, 3)).max(axis=1).min() >= 20


@pytest.mark.parametrize("task", TASKS)
def test_success_and_failure_are_different_pictures_at_64_px(task: str) -> None:
    """A linear classifier on raw pixels of both views, fitted on half of the frames, beats chance by far."""
    env = PandaVectorEnv(PandaEnvConfig(task=task, num_envs=128, obs_mode="state"))
    env.reset(seed=0)
    expert = make_policy(env, "expert", noise=0.25)
    frames, labels = [], []
    for step in range(49):
        _, _, _, _, info = env.step(expert())
        if step % 8 == 0:
            images = env.render_cameras()
            both = np.concatenate([images["main_images"], images["extra_view_images"][:, 0]], axis=1)
            frames.append(both[:, ::2, ::2].reshape(len(both), -1) / 255.0)
            labels.append(info["success"])
    x, y = np.concatenate(frames), np.concatenate(labels)
    assert 0.1 < y.mean() < 0.9
    train = np.tile(np.arange(128) < 64, len(frames))  # split by environment, so by episode
    x = x - x[train].mean(axis=0)
    gram = x[train] @ x[train].T + 30.0 * np.eye(train.sum())
    weights = x[train].T @ np.linalg.solve(gram, np.where(y[train], 1.0, -1.0) - np.where(y[train], 1.0, -1.0).mean())
    score = x[~train] @ weights
    positives, negatives = score[y[~train]], score[~y[~train]]
    auroc = (positives[:, None] > negatives[None]).mean()
    assert auroc > 0.85, f"AUROC {auroc:.3f}"


def test_peg_needs_the_depth_it_says() -> None:
    assert PegInsertion.DEPTH < SOCKET_HEIGHT
