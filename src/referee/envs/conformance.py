"""The conformance suite: what every environment of ours must do, whatever world stands behind it.

An environment's test module subclasses `Conformance` and gives it a way to make environments.
"""

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from referee.envs import Observation, RefereeVectorEnv
from referee.errors import ActionError, RefereeError


class Conformance:
    """Subclass it and define `make`; pytest then runs every test of the suite on that environment.

    `horizon` is `max_episode_steps` of the environments that `make` gives.
    """

    horizon = 5

    def make(self, num_envs: int = 3, obs_mode: str = "state", **options: Any) -> RefereeVectorEnv:
        """An environment to test. options: the suite asks for `max_episode_steps` once."""
        raise NotImplementedError

    @pytest.fixture
    def env(self) -> Iterator[RefereeVectorEnv]:
        made = self.make()
        yield made
        made.close()

    @staticmethod
    def actions(env: RefereeVectorEnv, seed: int = 0, steps: int = 1) -> np.ndarray:
        shape = (steps, env.num_envs, *(env.single_action_space.shape or ()))
        return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)

    def test_declares_itself(self, env: RefereeVectorEnv) -> None:
        assert isinstance(env, gym.vector.VectorEnv)
        assert env.metadata["autoreset_mode"] is gym.vector.AutoresetMode.SAME_STEP
        assert env.max_episode_steps == self.horizon
        assert env.task_description.endswith(".")
        assert len(set(env.cameras)) == len(env.cameras) >= 1

    @pytest.mark.parametrize("obs_mode", ["state", "rgb", "state+rgb"])
    def test_observations_lie_in_their_space(self, obs_mode: str) -> None:
        env = self.make(2, obs_mode)
        wanted = {"states"} if obs_mode == "state" else {"main_images", "extra_view_images"}
        wanted |= {"states"} if obs_mode == "state+rgb" else set()
        observation, _ = env.reset(seed=1)
        for step in range(self.horizon + 1):
            assert set(observation) == wanted
            assert env.observation_space.contains(observation)
            observation, rewards, terminated, truncated, _ = env.step(self.actions(env, step)[0])
            assert rewards.shape == terminated.shape == truncated.shape == (2,)
            assert terminated.dtype == truncated.dtype == bool
        env.close()

    def test_same_seed_same_actions_same_bits(self) -> None:
        first, second = (self.trace(self.make(3, "state"), seed=5) for _ in range(2))
        for name in first:
            np.testing.assert_array_equal(first[name], second[name], err_msg=name)

    def test_an_env_does_not_feel_its_neighbours(self) -> None:
        """Env i with seed s + i is the same alone or in company."""
        together, alone = self.make(3), self.make(1)
        together.reset(seed=10)
        alone.reset(seed=12)
        for actions in self.actions(together, 3, steps=2 * self.horizon):
            batch, single = together.step(actions), alone.step(actions[2:])
            np.testing.assert_array_equal(batch[0]["states"][2], single[0]["states"][0])
            assert batch[1][2] == single[1][0]
        together.close()
        alone.close()

    def test_another_seed_is_another_world(self, env: RefereeVectorEnv) -> None:
        first = env.reset(seed=0)[0]["states"].copy()
        assert not np.array_equal(env.reset(seed=100)[0]["states"], first)

    def test_episodes_of_one_seed_differ(self, env: RefereeVectorEnv) -> None:
        first = env.reset(seed=0)[0]["states"].copy()
        assert not np.array_equal(env.reset()[0]["states"], first)
        np.testing.assert_array_equal(env.reset(seed=0)[0]["states"], first)

    def test_seeds_may_be_given_one_by_one(self, env: RefereeVectorEnv) -> None:
        states = env.reset(seed=[4, 9, 4])[0]["states"]  # type: ignore[arg-type]
        np.testing.assert_array_equal(states[0], states[2])
        assert not np.array_equal(states[0], states[1])

    def test_reset_mask_resets_only_what_it_names(self, env: RefereeVectorEnv) -> None:
        env.reset(seed=0)
        before = env.step(self.actions(env)[0])[0]["states"]
        after, _ = env.reset(options={"reset_mask": np.array([False, True, False])})
        np.testing.assert_array_equal(after["states"][[0, 2]], before[[0, 2]])
        assert not np.array_equal(after["states"][1], before[1])

    def test_the_horizon_cuts_off_and_the_next_episode_begins_in_the_same_step(self, env: RefereeVectorEnv) -> None:
        env.reset(seed=0)
        for step, actions in enumerate(self.actions(env, 1, steps=2 * self.horizon), start=1):
            observation, _, terminated, truncated, info = env.step(actions)
            ended = step % self.horizon == 0
            assert truncated.tolist() == [ended] * 3
            assert not terminated.any()
            assert ("final_obs" in info) == ("final_info" in info) == ended
            if ended:
                assert info["_final_obs"].all() and info["_final_info"].all()
                for i in range(3):
                    assert env.single_observation_space.contains(info["final_obs"][i])
                    assert not np.array_equal(info["final_obs"][i]["states"], observation["states"][i])

    def test_the_final_observation_is_what_a_longer_episode_would_have_shown(self) -> None:
        """Nothing of the reset leaks into the last observation, reward or truth of an episode."""
        short, long = self.make(2), self.make(2, max_episode_steps=3 * self.horizon)
        short.reset(seed=3)
        long.reset(seed=3)
        for actions in self.actions(short, 2, steps=self.horizon):
            got, wanted = short.step(actions), long.step(actions)
            np.testing.assert_array_equal(got[1], wanted[1])
        final, truth = got[4]["final_obs"], got[4]["final_info"]
        for i in range(2):
            np.testing.assert_array_equal(final[i]["states"], wanted[0]["states"][i])
        for name in wanted[4]:
            np.testing.assert_array_equal(truth[name], wanted[4][name])

    def test_only_some_may_finish(self, env: RefereeVectorEnv) -> None:
        env.reset(seed=0)
        env.step(self.actions(env)[0])
        env.reset(options={"reset_mask": np.array([True, False, False])})
        for actions in self.actions(env, 1, steps=self.horizon - 1):
            _, _, _, truncated, info = env.step(actions)
        assert truncated.tolist() == [False, True, True]
        assert info["_final_obs"].tolist() == [False, True, True]
        assert info["final_obs"][0] is None
        with pytest.raises(RefereeError, match=r"environments \[0\] did not finish"):
            env.render_cameras([0, 1], final=True)

    def test_truth_is_about_the_state_that_is_shown(self, env: RefereeVectorEnv) -> None:
        _, info = env.reset(seed=0)
        for actions in self.actions(env, 4, steps=self.horizon + 2):
            assert info["success"].shape == (3,)
            assert info["success"].dtype == bool
            observation, _, _, _, info = env.step(actions)
            replay = self.make()
            np.testing.assert_array_equal(replay.restore_state(env.save_state())["states"], observation["states"])
            replay.close()

    def test_pictures_on_demand_are_those_of_the_observation(self) -> None:
        env = self.make(2, "state+rgb")
        observation, _ = env.reset(seed=0)
        for actions in self.actions(env, 5, steps=self.horizon):
            self.assert_same_pictures(env.render_cameras(), observation)
            observation, _, _, _, info = env.step(actions)
        final = env.render_cameras([1, 0], final=True)
        self.assert_same_pictures({name: value[0] for name, value in final.items()}, info["final_obs"][1])
        self.assert_same_pictures({name: value[1] for name, value in final.items()}, info["final_obs"][0])
        assert not np.array_equal(final["main_images"][1], env.render_cameras([0])["main_images"][0])
        env.close()

    def test_pictures_of_some_come_in_the_order_asked(self, env: RefereeVectorEnv) -> None:
        env.reset(seed=0)
        everything, some = env.render_cameras(), env.render_cameras([2, 0])
        size, views = env.image_size, len(env.cameras) - 1
        assert everything["main_images"].shape == (3, size, size, 3)
        assert everything["extra_view_images"].shape == (3, views, size, size, 3)
        for name in everything:
            np.testing.assert_array_equal(some[name], everything[name][[2, 0]])
        assert env.render_cameras([])["main_images"].shape == (0, size, size, 3)

    def test_some_of_the_cameras_give_the_same_pictures(self, env: RefereeVectorEnv) -> None:
        env.reset(seed=0)
        images = env.render_cameras()
        for index, name in enumerate(env.cameras):
            alone = env.render_cameras(cameras=[name])
            whole = images["main_images"] if index == 0 else images["extra_view_images"][:, index - 1]
            np.testing.assert_array_equal(alone["main_images"], whole)
            assert alone["extra_view_images"].shape[1] == 0
        with pytest.raises(RefereeError, match="camera"):
            env.render_cameras(cameras=["nowhere"])

    def test_progress_is_told_when_asked_for_and_is_about_the_state_shown(self, env: RefereeVectorEnv) -> None:
        assert "progress" not in env.reset(seed=0)[1]
        env.tell_progress = True
        _, info = env.reset(seed=0)
        if "progress" not in info:  # a world may not know
            return
        first = info["progress"].copy()
        for _ in range(self.horizon):
            *_, truncated, info = env.step(np.zeros(env.action_space.shape or (), np.float32))
            assert info["progress"].shape == (env.num_envs,) and info["progress"].dtype == np.float32
            assert ((info["progress"] >= 0) & (info["progress"] <= 1)).all()
        assert truncated.all() and info["final_info"]["progress"].shape == (env.num_envs,)
        env.reset(seed=0)
        np.testing.assert_array_equal(env.reset(seed=0)[1]["progress"], first)

    def test_the_robots_own_part_of_the_state_comes_first(self, env: RefereeVectorEnv) -> None:
        assert 0 < env.proprio_size <= env.single_observation_space["states"].shape[0]  # type: ignore[index]

    def test_looking_changes_nothing(self) -> None:
        looked, blind = self.make(2), self.make(2)
        looked.reset(seed=0)
        blind.reset(seed=0)
        for actions in self.actions(looked, 6, steps=self.horizon + 2):
            looked.render_cameras()
            np.testing.assert_array_equal(looked.step(actions)[0]["states"], blind.step(actions)[0]["states"])
        looked.close()
        blind.close()

    def test_a_saved_state_goes_on_bit_by_bit(self) -> None:
        env = self.make(2)
        env.reset(seed=0)
        for actions in self.actions(env, 7, steps=3):
            env.step(actions)
        saved = env.save_state()
        rest = self.actions(env, 8, steps=2 * self.horizon)
        wanted = [env.step(actions) for actions in rest]
        other = self.make(2)
        other.restore_state(saved)
        for actions, (observation, reward, terminated, truncated, info) in zip(rest, wanted, strict=True):
            got = other.step(actions)
            np.testing.assert_array_equal(got[0]["states"], observation["states"])
            np.testing.assert_array_equal(got[1], reward)
            np.testing.assert_array_equal(got[2] | got[3], terminated | truncated)
            np.testing.assert_array_equal(got[4]["success"], info["success"])
        env.close()
        other.close()

    def test_a_state_of_another_env_is_refused(self, env: RefereeVectorEnv) -> None:
        other = self.make(2)
        with pytest.raises(RefereeError, match="does not fit"):
            env.restore_state(other.save_state())
        other.close()

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_actions_that_are_no_numbers_are_refused(self, env: RefereeVectorEnv, bad: float) -> None:
        env.reset(seed=0)
        actions = self.actions(env)[0]
        actions[1, 2] = bad
        with pytest.raises(ActionError, match=r"action 2 of environment 1 is (nan|inf|-inf): .* before step"):
            env.step(actions)

    def test_actions_out_of_range_are_refused(self, env: RefereeVectorEnv) -> None:
        env.reset(seed=0)
        actions = self.actions(env)[0]
        actions[2, 0] = 1.5
        with pytest.raises(ActionError, match=r"action 0 of environment 2 is 1\.5, outside \[-1, 1\]: clip"):
            env.step(actions)

    def test_a_refused_action_moves_nothing(self, env: RefereeVectorEnv) -> None:
        env.reset(seed=0)
        before = env.save_state()
        with pytest.raises(ActionError, match="have shape"):
            env.step(np.zeros((3, 1)))
        for name, value in env.save_state().items():
            np.testing.assert_array_equal(value, before[name])

    def test_step_before_reset_is_refused(self, env: RefereeVectorEnv) -> None:
        with pytest.raises(RefereeError, match="before the first reset"):
            env.step(self.actions(env)[0])

    def test_wrong_ids_seeds_and_masks_are_refused(self, env: RefereeVectorEnv) -> None:
        env.reset(seed=0)
        with pytest.raises(RefereeError, match=r"must lie in 0\.\.2"):
            env.render_cameras([3])
        with pytest.raises(RefereeError, match="2 seeds were given for 3 environments"):
            env.reset(seed=[1, 2])  # type: ignore[arg-type]
        with pytest.raises(RefereeError, match="seed is -1"):
            env.reset(seed=-1)
        with pytest.raises(RefereeError, match="reset_mask has shape"):
            env.reset(options={"reset_mask": np.array([True])})

    @classmethod
    def trace(cls, env: RefereeVectorEnv, *, seed: int) -> dict[str, np.ndarray]:
        """All that a run of two and a half episodes shows."""
        observation, info = env.reset(seed=seed)
        rows: dict[str, list[np.ndarray]] = {"states": [observation["states"]], "success": [info["success"]]}
        for actions in cls.actions(env, seed, steps=int(2.5 * env.max_episode_steps)):
            observation, rewards, terminated, truncated, info = env.step(actions)
            rows["states"].append(observation["states"])
            rows["success"].append(info["success"])
            rows.setdefault("rewards", []).append(rewards)
            rows.setdefault("done", []).append(terminated | truncated)
        env.close()
        return {name: np.stack(values) for name, values in rows.items()}

    @staticmethod
    def assert_same_pictures(got: Observation, wanted: Observation) -> None:
        for name in ("main_images", "extra_view_images"):
            np.testing.assert_array_equal(got[name], wanted[name])
