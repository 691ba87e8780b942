"""ManiSkill's tasks keep the contract: states without any driver, pictures with software Vulkan."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from referee.config import ManiSkillEnvConfig
from referee.envs import make_vec
from referee.envs.conformance import Conformance
from referee.envs.maniskill import vulkan
from referee.envs.maniskill.env import ManiSkillVectorEnv
from referee.errors import RefereeError

pytestmark = [pytest.mark.slow, pytest.mark.maniskill]
QUICK = {"shader": "unlit", "light_scene": True, "image_size": 64, "cameras": ("front", "side")}


@pytest.fixture(autouse=True, scope="module")
def _driver() -> Iterator[None]:
    """Some tests make ManiSkill's environments in this very process."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in vulkan.variables(gpu=False).items():
            patch.setenv(name, value)
        yield


def make(task: str = "PickCube-v1", **options: Any) -> ManiSkillVectorEnv:
    env = make_vec(ManiSkillEnvConfig(task=task, **QUICK | {"num_envs": 1, "num_workers": 1} | options))
    assert isinstance(env, ManiSkillVectorEnv)
    return env


class TestPickCube(Conformance):
    """The whole suite once, in two workers that share three environments."""

    def make(self, num_envs: int = 3, obs_mode: str = "state", **options: Any) -> ManiSkillVectorEnv:
        given = {"max_episode_steps": self.horizon, **options}
        return make(num_envs=num_envs, obs_mode=obs_mode, num_workers=2, **given)


SIZES = {"PickCube-v1": 42, "PushCube-v1": 35, "StackCube-v1": 48, "PegInsertionSide-v1": 43, "PlugCharger-v1": 46}


@pytest.mark.parametrize("task", SIZES)
def test_each_task_acts_and_is_seen(task: str) -> None:
    """PegInsertionSide makes another peg for each episode, so its pictures do, too."""
    reward = "sparse" if task == "PlugCharger-v1" else "normalized_dense"
    env = make(task, max_episode_steps=2, reward_mode=reward)
    observation, info = env.reset(seed=0)
    assert observation["states"].shape == (1, SIZES[task]) and env.proprio_size == 18
    assert ("grasp" in info) == (task in ("PickCube-v1", "StackCube-v1"))
    first = env.render_cameras()["main_images"][0]
    assert len(np.unique(first.reshape(-1, 3), axis=0)) > 10
    env.step(np.ones((1, env.single_action_space.shape[0])))
    assert (env.render_cameras()["main_images"][0] != first).any()
    *_, truncated, _ = env.step(np.ones((1, env.single_action_space.shape[0])))
    assert truncated.all()
    last = env.render_cameras(final=True)["main_images"][0]
    assert (last != env.render_cameras()["main_images"][0]).any()
    env.close()


def test_the_goal_is_drawn_unless_nobody_wants_it() -> None:
    """The green ball of PickCube: ManiSkill hides it from cameras."""
    green = {}
    for shown in (True, False):
        env = make(show_goal=shown, cameras=("side",))
        env.reset(seed=1)
        red, lots, blue = np.moveaxis(env.render_cameras()["main_images"][0].astype(int), -1, 0)
        green[shown] = int(((lots > 120) & (red < 60) & (blue < 60)).sum())
        env.close()
    assert green[True] > 5 and green[False] == 0


def test_a_light_scene_looks_the_same_from_afar() -> None:
    """A robot of few triangles covers the pixels that the whole one does."""
    pictures = []
    for light in (False, True):
        env = make(light_scene=light)
        env.reset(seed=1)
        views = env.render_cameras()
        pictures.append(np.stack([views["main_images"][0], views["extra_view_images"][0, 0]]).astype(int))
        env.close()
    differ = np.abs(pictures[0] - pictures[1]).max(axis=-1) > 60
    robot = pictures[0].min(axis=-1) > 150  # white, as nothing else in PickCube
    assert robot.mean() > 0.03
    assert (differ & robot).sum() < 0.1 * robot.sum()


def test_a_killed_worker_is_one_clear_error() -> None:
    env = make(num_envs=2, num_workers=2)
    env.reset(seed=0)
    os.kill(env._worlds._workers[1].pid, signal.SIGKILL)
    with pytest.raises(RefereeError, match=r"environments 1\.\.1 ended.*start again"):
        env.step(np.zeros((2, 8)))
    with pytest.raises(RefereeError, match="make it again"):
        env.step(np.zeros((2, 8)))
    env.close()


def test_workers_end_with_their_env() -> None:
    env = make()
    pid = env._worlds._workers[0].pid
    env.close()
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("the worker is still there")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"task": "PickCub-v1"}, "no task 'PickCub-v1' .* did you mean PickCube-v1"),
        ({"task": "PlugCharger-v1"}, "has no normalized_dense reward: .* one of sparse"),
        ({"task": "LiftPegUpright-v1", "success": "visible"}, "set env.*success=task"),
        ({"sim_backend": "gpu"}, "needs CUDA"),
    ],
)
def test_what_cannot_be_made_says_why(options: dict[str, Any], said: str) -> None:
    if "sim_backend" in options and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(RefereeError, match=said):
        make(**options)


def test_without_a_driver_one_hears_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VK_ICD_FILENAMES", "/nowhere.json")
    with pytest.raises(RefereeError, match="referee doctor --install-swiftshader"):
        make()


def test_the_past_leaves_no_trace_in_an_episode() -> None:
    """PhysX remembers grasps; still, an episode after many others is as if it were the first, to the last digit."""
    from referee.envs.maniskill.world import World

    def grasp(world: World, seed: int, steps: int) -> np.ndarray:
        world.begin([0], [seed])
        seen = []
        for step in range(steps):
            gap = (world.env.cubeA.pose.p - world.env.agent.tcp.pose.p)[0].numpy() * 8
            world.step(np.clip([[*gap, 1 if step < 20 else -1]], -1, 1).astype(np.float32))
            seen.append(world.states[0].copy())
        return np.stack(seen)

    config = ManiSkillEnvConfig(task="StackCube-v1", control_mode="pd_ee_delta_pos")
    fresh, used = World(config), World(config)
    wanted = grasp(fresh, 7, 30)
    for seed in range(3, 9):
        grasp(used, seed, 20 + seed)
    np.testing.assert_array_equal(grasp(used, 7, 30), wanted)


def test_success_may_mean_what_a_frame_shows() -> None:
    """A cube at its goal while the robot still moves: the task says no, the picture says yes."""
    from referee.envs.maniskill.world import World

    for definition, wanted in (("task", False), ("visible", True)):
        world = World(ManiSkillEnvConfig(success=definition))
        world.begin([0], [0])
        env = world.env
        env.cube.set_pose(env.goal_site.pose)
        env.agent.robot.set_qvel(torch.full((1, 9), 1.0))
        world._info = env.get_info()
        assert world.success.tolist() == [wanted]
        env.agent.robot.set_qvel(torch.zeros((1, 9)))
        world._info = env.get_info()
        assert world.success.tolist() == [True]


def test_the_batch_of_a_gpu_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole batch needs CUDA; with one environment its code runs here, behind the same env."""
    from referee.envs.maniskill import env as module
    from referee.envs.maniskill.gpu import Batch

    monkeypatch.setattr(module, "_worlds", lambda config: Batch(config, gpu=False))
    batch = make(obs_mode="state+rgb", max_episode_steps=4)
    monkeypatch.undo()
    pool = make(obs_mode="state+rgb", max_episode_steps=4)
    for actions in np.random.default_rng(0).uniform(-1, 1, (2, 1, 8)):
        results = []
        for env in (batch, pool):
            if env._started is False:
                env.reset(seed=3)
            results.append(env.step(actions))
        np.testing.assert_allclose(results[0][0]["states"], results[1][0]["states"], atol=1e-5)
        np.testing.assert_allclose(results[0][1], results[1][1], atol=1e-5)
        assert np.abs(results[0][0]["main_images"].astype(int) - results[1][0]["main_images"]).mean() < 1.0
    saved = batch.save_state()
    batch.step(np.ones((1, 8)))
    np.testing.assert_allclose(batch.restore_state(saved)["states"], results[0][0]["states"], atol=1e-5)
    for env in (batch, pool):
        env.step(np.ones((1, 8)))
        _, _, _, truncated, info = env.step(np.ones((1, 8)))
        assert truncated.all()
        last = env.render_cameras(final=True)["main_images"][0]
        np.testing.assert_array_equal(last, info["final_obs"][0]["main_images"])
        env.close()
