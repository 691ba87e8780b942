"""A hand on the SpaceMouse overrides whoever acts, is heard by the learner, and recorded as what it was."""

from pathlib import Path

import numpy as np
import pytest
from test_franka import config

from referee.envs.franka.env import FrankaVectorEnv
from referee.envs.franka.intervention import Intervention, make_arm
from referee.episodes.recorder import Recorder
from referee.episodes.store import EpisodeStore
from referee.rl.rollout import Rollout
from referee.robots.spacemouse import InputError, Motion, ScriptedInput
from referee.robots.twin import Faults, Twin

POLICY = np.array([[0.0, 1.0, 0.0, 0.0]], np.float32)
PUSH = Motion(translation=np.array([1.0, 0.0, 0.0]))


def make(motions: list[Motion], **options: object) -> Intervention:
    made = make_arm(config(obs_mode="state", scene="PickCube", **options), ScriptedInput(motions))
    assert isinstance(made, Intervention)
    return made


def test_a_touch_overrides_for_half_a_second() -> None:
    env = make([Motion(), PUSH])
    env.reset(seed=0)
    told = []
    for _ in range(9):
        info = env.step(POLICY)[4]
        told.append(bool(info.get("_intervene_action", [False])[0]))
        if told[-1]:
            wanted = [1, 0, 0, 0] if len(told) == 2 else [0, 0, 0, 0]  # the hand at rest: it stands still
            assert info["intervene_action"][0].tolist() == wanted
    assert told == [False] + [True] * 5 + [False] * 3  # 0.5 s at 10 Hz
    env.close()


def test_it_is_the_hand_that_moves_the_arm() -> None:
    env = make([PUSH] * 5)
    before = env.reset(seed=0)[0]["states"][0, 14:17]
    for _ in range(5):
        after = env.step(POLICY)[0]["states"][0, 14:17]
    assert after[0] - before[0] > 0.06 and abs(after[1] - before[1]) < 0.01
    env.close()


def test_left_closes_and_right_opens() -> None:
    env = make([Motion(left=True)] * 8 + [Motion(right=True)] * 8)
    env.reset(seed=0)
    for _ in range(8):
        observation, *_, info = env.step(POLICY)
    assert info["intervene_action"][0, -1] == -1 and observation["states"][0, -1] < 0.01
    for _ in range(8):
        observation, *_, info = env.step(POLICY)
    assert info["intervene_action"][0, -1] == 1 and observation["states"][0, -1] > 0.07
    env.close()


def test_rotation_goes_with_it_where_the_arm_rotates() -> None:
    env = make([], control_mode="ee_delta_rotation")
    motion = Motion(np.array([0.1, 0.2, 0.3]), np.array([0.4, 0.5, 0.6]), right=True)
    np.testing.assert_allclose(env.action_of(motion), [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1.0], rtol=1e-6)
    env.close()


def test_without_its_device_the_arm_holds() -> None:
    def gone() -> Motion:
        raise InputError("the SpaceMouse is gone (unplugged): plug it in again")

    env = make_arm(config(obs_mode="state", scene="PickCube"), ScriptedInput(gone))
    before = env.reset(seed=0)[0]["states"][0, 14:17]
    for _ in range(5):
        observation, *_, info = env.step(POLICY)
        assert "the SpaceMouse is gone" in info["hold"][0] and info["_hold"][0] and "intervene_action" not in info
    np.testing.assert_allclose(observation["states"][0, 14:17], before, atol=2e-3)
    env.close()


def test_while_the_arm_must_hold_the_hand_moves_nothing() -> None:
    env = make([PUSH] * 5)
    env.reset(seed=0)
    twin = env.env.stations[0].arm
    assert isinstance(twin, Twin)
    twin.faults = Faults(lost=True)
    for _ in range(3):
        info = env.step(POLICY)[4]
    assert info["_hold"][0] and not info["_intervene_action"][0]
    env.close()


def test_the_learner_and_the_recorder_hear_of_it(tmp_path: Path) -> None:
    inside = make([Motion(), PUSH, PUSH], max_episode_steps=10)
    env = Recorder(inside, lambda: EpisodeStore(tmp_path))
    observation, _ = env.reset(seed=0)
    rollout = Rollout(env, 10, ("states",))
    for step in range(10):
        if step == 8:
            inside.env.stations[0].clock.sleep(5.0)  # too late: the arm holds
        result = env.step(POLICY)
        rollout.add(step, observation, POLICY, result)
        observation = result[0]
    env.close()
    policy, still = POLICY[0].tolist(), [0, 0, 0, 0]
    taken = [policy] + [[1, 0, 0, 0]] * 2 + [still] * 4 + [policy, still, policy]
    stepped_in = [False] + [True] * 6 + [False] * 3
    assert rollout.actions[:, 0].tolist() == taken and rollout.intervened[:, 0].tolist() == stepped_in
    (episode,) = list(EpisodeStore(tmp_path))
    np.testing.assert_array_equal(episode.actions, np.array(taken, np.float32))
    assert episode.signals["intervened"].tolist() == [False, *stepped_in]
    assert np.flatnonzero(episode.signals["held"]).tolist() == [9]


def test_at_a_twin_the_expert_takes_the_mouse() -> None:
    env = make_arm(config(obs_mode="state", no_gripper=True, use_spacemouse=True, terminate_on_success=False))
    env.reset(seed=1)
    nothing = np.zeros((1, 3), np.float32)
    for _ in range(40):
        info = env.step(nothing)[4]
        assert info["_intervene_action"][0]
    assert info["success"][0]
    env.close()


def test_a_policy_that_diverges_is_found_out_even_while_a_person_drives() -> None:
    env = make([PUSH] * 3)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="nan"):
        env.step(np.full((1, 4), np.nan))
    env.close()


def test_it_is_a_wrapper_of_the_arm() -> None:
    env = make([])
    assert isinstance(env.unwrapped, FrankaVectorEnv)
    env.close()
