"""The Panda environment keeps the contract and its own promises."""

from typing import Any

import numpy as np
import pytest

from referee.config import PandaEnvConfig
from referee.config.schema import RandomiseConfig
from referee.envs import RefereeVectorEnv, make_vec
from referee.envs.conformance import Conformance
from referee.envs.panda.env import PandaVectorEnv
from referee.envs.panda.tasks import TASKS
from referee.errors import RefereeError


class PandaConformance(Conformance):
    task = "PickCube"
    control_mode = "ee_delta"

    def make(self, num_envs: int = 3, obs_mode: str = "state", **options: Any) -> RefereeVectorEnv:
        given = {"max_episode_steps": self.horizon, "control_mode": self.control_mode, **options}
        return make_vec(PandaEnvConfig(task=self.task, num_envs=num_envs, obs_mode=obs_mode, **given))


class TestPickCube(PandaConformance):
    pass


class TestReach(PandaConformance):
    task = "Reach"


class TestPushCube(PandaConformance):
    task = "PushCube"
    control_mode = "joint_delta"


class TestPegInsertion(PandaConformance):
    task = "PegInsertion"


class TestRandomised(PandaConformance):
    """Domain randomisation changes pictures, never the contract."""

    def make(self, num_envs: int = 3, obs_mode: str = "state", **options: Any) -> RefereeVectorEnv:
        looks = RandomiseConfig(light=1.0, colours=1.0, camera=1.0, distractors=3)
        return super().make(num_envs, obs_mode, randomise=looks, **options)


def env(task: str = "PickCube", **options: Any) -> PandaVectorEnv:
    return PandaVectorEnv(PandaEnvConfig(task=task, **options))


@pytest.mark.parametrize("task", TASKS)
def test_the_same_bits_for_any_number_of_threads(task: str) -> None:
    traces = []
    for threads in (1, 2, 5):
        made = env(task, num_envs=5, num_threads=threads, max_episode_steps=20)
        traces.append(Conformance.trace(made, seed=3))
    for other in traces[1:]:
        for name in traces[0]:
            np.testing.assert_array_equal(traces[0][name], other[name])


@pytest.mark.parametrize(("task", "size"), [("Reach", 31), ("PushCube", 41), ("PickCube", 42), ("PegInsertion", 31)])
def test_size_of_the_state(task: str, size: int) -> None:
    made = env(task, num_envs=1)
    assert made.single_observation_space["states"].shape == (size,)


def test_grasp_is_reported_where_it_means_something() -> None:
    for task in TASKS:
        _, info = env(task, num_envs=1).reset(seed=0)
        assert ("grasp" in info) == (task == "PickCube")


def test_sparse_reward_is_success() -> None:
    made = env("Reach", num_envs=8, reward_mode="sparse")
    _, info = made.reset(seed=0)
    from referee.envs.policies import make_policy

    expert = make_policy(made, "expert")
    paid = []
    for _ in range(15):
        _, rewards, _, _, info = made.step(expert())
        np.testing.assert_array_equal(rewards, info["success"].astype(float))
        paid.append(rewards.max())
    assert max(paid) == 1.0 and min(paid) == 0.0


def test_success_ends_an_episode_only_if_asked() -> None:
    from referee.envs.policies import make_policy

    made = env("Reach", num_envs=4, terminate_on_success=True)
    made.reset(seed=0)
    expert = make_policy(made, "expert")
    ended = np.zeros(4, bool)
    for _ in range(15):
        _, _, terminated, truncated, info = made.step(expert())
        assert not truncated.any()
        if terminated.any():
            np.testing.assert_array_equal(info["final_info"]["success"][terminated], True)
            np.testing.assert_array_equal(info["final_info"]["_success"], terminated)
            assert not info["success"][terminated].any()
            ended |= terminated
    assert ended.all()


def test_success_must_be_held_where_that_is_asked() -> None:
    from referee.envs.policies import make_policy

    made = env("Reach", num_envs=4, terminate_on_success=True, success_hold_steps=3)
    made.reset(seed=0)
    expert = make_policy(made, "expert")
    held, ended = np.zeros(4, int), 0
    for step in range(30):
        if step == 10:  # what is held belongs to the state
            made.restore_state(made.save_state())
        _, _, terminated, _, info = made.step(expert())
        good = (
            np.where(terminated, info["final_info"]["success"], info["success"])
            if terminated.any()
            else info["success"]
        )
        held = (held + 1) * good
        np.testing.assert_array_equal(terminated, held >= 3)
        held[terminated] = 0
        ended += terminated.sum()
    assert ended >= 4


def test_a_blown_up_simulation_is_cut_off_and_begins_anew() -> None:
    made = env(num_envs=3)
    made.reset(seed=0)
    made._sim.qvel[1, 9:12] = 1e12
    observation, rewards, _, truncated, info = made.step(np.zeros((3, 4)))
    assert truncated.tolist() == [False, True, False]
    assert np.isfinite(observation["states"]).all() and np.isfinite(rewards).all()
    assert np.isfinite(info["final_obs"][1]["states"]).all()


def test_looks_have_a_seed_of_their_own() -> None:
    def pictures(seed: int, looks_seed: int | None) -> tuple[np.ndarray, np.ndarray]:
        made = env(num_envs=1, randomise=RandomiseConfig(colours=1.0, seed=looks_seed))
        states = made.reset(seed=seed)[0]["states"]
        return states, made.render_cameras()["main_images"]

    (states, first), (same_states, second) = pictures(0, 1), pictures(0, 2)
    np.testing.assert_array_equal(states, same_states)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(pictures(0, 1)[1], first)


def test_looks_change_with_the_episode_but_not_within_it() -> None:
    made = env("Reach", num_envs=1, cameras=("front",), randomise=RandomiseConfig(colours=1.0))
    made.reset(seed=0)
    corner = (0, 60, 5)  # the table, far from the arm
    before = made.render_cameras()["main_images"][corner]
    made.step(np.ones((1, 4)))
    np.testing.assert_array_equal(made.render_cameras()["main_images"][corner], before)
    made.reset()
    assert not np.array_equal(made.render_cameras()["main_images"][corner], before)


def test_unknown_task_and_zero_envs() -> None:
    with pytest.raises(RefereeError, match="unknown task 'Fold': choose one of Reach, PushCube"):
        env("Fold")
    with pytest.raises(RefereeError, match="num_envs is 0"):
        env(num_envs=0)


def test_hand_actions_point_the_same_way_in_both_control_modes() -> None:
    step = np.array([[0.01, -0.01, 0.005]])
    for mode in ("ee_delta", "joint_delta"):
        made = env("Reach", num_envs=1, control_mode=mode)
        made.reset(seed=0)
        start = made.world().tcp
        for _ in range(4):
            made.step(made.hand_actions(step, np.array([1.0])))
        moved = (made.world().tcp - start)[0]
        assert moved @ step[0] / np.linalg.norm(moved) / np.linalg.norm(step[0]) > 0.98
