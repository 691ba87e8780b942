"""Counting episodes: fair between short and long ones, and right about the last frame."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from referee.config import PandaEnvConfig
from referee.envs.panda.env import PandaVectorEnv
from referee.envs.policies import make_policy
from referee.learn.roll_out import FilmMaker, Outcomes, roll_out


class Scripted:
    """A stand-in for an env whose episodes follow a script: lengths, and success in the last frame or on the way."""

    def __init__(self, lengths: list[int], success_at: list[int | None]) -> None:
        self.num_envs = len(lengths)
        self.lengths, self.success_at = np.array(lengths), success_at
        self.single_action_space = gym.spaces.Box(-1, 1, (1,))

    def _success(self) -> np.ndarray:
        return np.array([at == t for at, t in zip(self.success_at, self.time, strict=True)])

    def reset(self, seed: int) -> tuple[None, dict[str, Any]]:
        self.time = np.zeros(self.num_envs, int)
        return None, {"success": self._success()}

    def step(self, actions: np.ndarray) -> tuple[None, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        self.time += 1
        final = self._success()
        done = self.time == self.lengths
        self.time[done] = 0
        info: dict[str, Any] = {"success": np.where(done, False, final)}
        if done.any():
            info["final_info"] = {"success": final, "_success": done}
        return None, np.ones(self.num_envs), done & final, done & ~final, info


def test_every_env_contributes_the_same_number_of_episodes() -> None:
    """Env 0 succeeds in two steps, env 1 fails in twenty: taking the first to finish would say 100 %."""
    outcomes = roll_out(Scripted([2, 20], [2, None]), lambda: np.zeros((2, 1)), 8, seed=0)  # type: ignore[arg-type]
    assert len(outcomes) == 8
    assert outcomes.rate().share == 0.5
    assert sorted(outcomes.lengths) == [2] * 4 + [20] * 4
    assert sorted(outcomes.returns) == [2.0] * 4 + [20.0] * 4


def test_once_and_at_end_are_two_things() -> None:
    outcomes = roll_out(Scripted([5, 5, 5], [5, 3, None]), lambda: np.zeros((3, 1)), 3, seed=0)  # type: ignore[arg-type]
    assert outcomes.success_at_end == [True, False, False]
    assert outcomes.success_once == [True, True, False]


def test_fewer_episodes_than_envs() -> None:
    assert len(roll_out(Scripted([3] * 4, [None] * 4), lambda: np.zeros((4, 1)), 2, seed=0)) == 2  # type: ignore[arg-type]


def test_the_summary_adds_up() -> None:
    outcomes = Outcomes([True, False], [True, True], [1.0, 3.0], [4, 6])
    summary = outcomes.summary()
    assert summary["success_at_end"] == 0.5
    assert summary["success_once"] == 1.0
    assert summary["return"] == 2.0
    assert summary["length"] == 5.0


def test_a_film_holds_each_episode_once_and_ends_with_its_last_frame() -> None:
    env = PandaVectorEnv(PandaEnvConfig(task="Reach", num_envs=3, max_episode_steps=4))
    film = FilmMaker(env, 2, pixels=64)
    roll_out(env, make_policy(env, "expert"), 6, seed=0, watch=film)
    frames = film.frames()
    assert len(frames) == 2 * (4 + 12)
    np.testing.assert_array_equal(frames[3], frames[15])
    env.close()


@pytest.mark.parametrize("success", [True, False])
def test_the_expert_beats_noise(success: bool) -> None:
    env = PandaVectorEnv(PandaEnvConfig(task="PushCube", num_envs=16))
    rate = roll_out(env, make_policy(env, "expert" if success else "random"), 16, seed=0).rate()
    assert rate.share >= 0.95 if success else rate.share <= 0.2
