"""When something is not right, the arm holds and says so: never a success, never a motion on old data."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from test_franka import config

from referee.envs.franka.env import FrankaVectorEnv
from referee.envs.franka.guard import Limits, guarded
from referee.envs.policies import make_policy
from referee.errors import ConfigError, RefereeError
from referee.robots.arm import ArmError
from referee.robots.poses import Pose, PoseError
from referee.robots.twin import Faults, Twin

TARGET = (0.5, 0.0, 0.088, -3.14, 0.0, 0.0)
FORWARD = np.array([[1.0, 0.0, 0.0]], np.float32)
BRAKING = 2e-3
"""Metres: an arm that lags 1.3 mm behind its target and cannot be told to stop ends there; else it is 0.3 mm."""


def make(**options: Any) -> FrankaVectorEnv:
    return FrankaVectorEnv(config(no_gripper=True, obs_mode="state", **{"target_ee_pose": TARGET, **options}))


@pytest.fixture
def env() -> Iterator[FrankaVectorEnv]:
    made = make()
    made.reset(seed=0)
    yield made
    made.close()


def twin(env: FrankaVectorEnv) -> Twin:
    arm = env.stations[0].arm
    assert isinstance(arm, Twin)
    return arm


def where(env: FrankaVectorEnv) -> np.ndarray:
    """The true place of the fingertips."""
    return twin(env).sim.tcp[0].copy()


def assert_holds(env: FrankaVectorEnv, said: str, result: Any, before: np.ndarray) -> None:
    _, rewards, terminated, _, info = result
    assert np.linalg.norm(where(env) - before) < BRAKING
    assert said in info["hold"][0] and info["_hold"][0]
    assert rewards[0] == 0 and not terminated[0] and not info["success"][0]


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ({"frozen": ("wrist",)}, "camera wrist"),
        ({"dark": ("front",)}, "camera front gives no frames"),
        ({"frame_seconds": 0.5}, "camera wrist is 0.50 s old"),
        ({"lost": True}, "does not answer"),
        ({"refused": True}, "refuses commands"),
        ({"reply_seconds": 0.4}, "state of the arm is 0.40 s old"),
        ({"frame_seconds": -0.5}, "camera wrist is stamped 0.50 s in the future"),
        ({"frame_seconds": float("nan")}, "camera wrist is without a time stamp"),
        ({"state_seconds": -0.5}, "state of the arm is stamped 0.50 s in the future"),
        ({"state_seconds": 0.5}, "state of the arm is 0.50 s old"),
    ],
)
def test_faults_make_the_arm_hold(faults: dict[str, Any], said: str) -> None:
    env = make(fault_seconds=60.0)
    env.reset(seed=0)
    env.step(FORWARD)
    twin(env).faults = Faults(**faults)
    before = where(env)
    first = env.step(FORWARD)
    if "frozen" in faults:  # nobody can know before time has passed: the step is made, and its result not seen
        assert "hold" not in first[4] and first[4]["_unseen"][0] and not first[4]["success"][0]
        before = where(env)
    else:
        assert_holds(env, said, first, before)
    for _ in range(5):
        result = env.step(FORWARD)
        assert_holds(env, said, result, before)
    assert result[4]["_executed_action"].all() and not result[4]["executed_action"].any()
    twin(env).faults = Faults()
    env.step(FORWARD)  # looks again, and does not move yet
    before = where(env)
    result = env.step(FORWARD)
    assert "hold" not in result[4]
    assert where(env)[0] - before[0] > 0.01
    env.close()


@pytest.mark.parametrize("ahead", [0.04, 0.06])
def test_clocks_that_differ_a_little_do_not_stop_an_arm(ahead: float) -> None:
    """`max_ahead` is 0.05 s."""
    env = make(fault_seconds=60.0, max_episode_steps=1000)
    env.reset(seed=0)
    twin(env).faults = Faults(frame_seconds=-ahead, state_seconds=-ahead)
    moved = sum("hold" not in env.step(FORWARD / 10)[4] for _ in range(100))
    env.close()
    assert moved == (100 if ahead < 0.05 else 0)


def test_held_steps_do_not_move_the_arm() -> None:
    """In every direction, from full speed, with actions that go on: what a hold covers is the way of braking."""
    env = make(fault_seconds=60.0, max_episode_steps=1000)
    braking, later = [], []
    for seed in range(8):
        env.reset(seed=seed)
        action = np.random.default_rng(seed).uniform(-1, 1, (1, 3)).astype(np.float32)
        for _ in range(2):
            env.step(action)
        twin(env).faults = Faults(frozen=("wrist",))
        assert "hold" not in env.step(action)[4]  # on a fresh observation, and stopped at its end
        places = [where(env)]
        for _ in range(10):
            assert env.step(action)[4]["_hold"][0]
            places.append(where(env))
        twin(env).faults = Faults()
        braking.append(np.linalg.norm(places[1] - places[0]))
        later.append(max(np.linalg.norm(place - places[1]) for place in places[2:]))
    env.close()
    assert max(braking) < 5e-4 and max(later) < 5e-4  # measured: 0.12 and 0.13 mm


def test_an_arm_is_stopped_when_the_fault_is_noticed_not_at_the_next_action(env: FrankaVectorEnv) -> None:
    """A slow policy, or a learner that has died, would leave it on its way."""
    env.step(FORWARD)
    twin(env).faults = Faults(frozen=("wrist",))
    env.step(FORWARD)
    arm = twin(env)
    behind = arm._target.position - where(env)
    assert np.linalg.norm(behind) < 1e-9  # where it was measured is where it is told to be


def test_a_camera_that_froze_while_a_policy_thought_stops_the_step(env: FrankaVectorEnv) -> None:
    """The observation may be a second old, the cameras beneath it may not."""
    env.step(FORWARD)
    twin(env).faults = Faults(frozen=("wrist",))
    env.stations[0].clock.sleep(0.15)
    twin(env).state()
    before = where(env)
    assert_holds(env, "camera wrist gives the same frame again", env.step(FORWARD), before)


def test_a_fault_that_lasts_ends_the_episode_and_then_the_run(env: FrankaVectorEnv) -> None:
    env.step(FORWARD)
    twin(env).faults = Faults(lost=True)
    steps = 0

    def go_on() -> None:
        nonlocal steps
        while steps < 40:
            steps += 1
            env.step(FORWARD)

    with pytest.raises(ArmError, match="no episode can begin, for 10 s now: the arm does not answer"):
        go_on()
    assert steps == 21  # two seconds after the step in which it was noticed


def test_a_fault_that_passes_costs_the_episode_only(env: FrankaVectorEnv) -> None:
    env.step(FORWARD)
    twin(env).faults = Faults(frozen=("wrist",), until=env.stations[0].clock.now() + 5.0)
    truncated, steps = np.array([False]), 0
    while not truncated[0]:
        _, _, _, truncated, info = env.step(FORWARD)
        steps += 1
    assert steps == 21
    assert not info["final_info"]["success"][0]
    before = where(env)
    assert "hold" not in env.step(FORWARD)[4]
    assert where(env)[0] - before[0] > 0.01


def refusing(env: FrankaVectorEnv, times: int, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Let the arm collide on its next ways; returns the places that it was sent to."""
    arm, sent = twin(env), list[np.ndarray]()
    move_to = arm.move_to

    def once_more(target: Pose, *, speed: float) -> None:
        sent.append(target.position)
        if len(sent) <= times:
            raise ArmError("the arm does not arrive (cartesian_reflex): recover it")
        move_to(target, speed=speed)

    monkeypatch.setattr(arm, "move_to", once_more)
    return sent


def test_a_collision_on_the_way_back_is_recovered_from(
    env: FrankaVectorEnv, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sent = refusing(env, 3, monkeypatch)
    env.reset()
    assert len(sent) == 5 and "hold" not in env.step(FORWARD)[4]
    assert sum("it recovers and tries again" in record.message for record in caplog.records) == 1


def test_collisions_on_every_way_back_end_the_run(env: FrankaVectorEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(env, 1000, monkeypatch)
    began = env.stations[0].clock.now()
    with pytest.raises(ArmError, match="no episode can begin, for 10 s now: the arm does not arrive"):
        env.reset()
    assert 10 <= env.stations[0].clock.now() - began < 12


def put_outside(env: FrankaVectorEnv) -> np.ndarray:
    arm = twin(env)
    arm.place(arm.solve(Pose(np.array([0.45, 0.35, 0.15]), arm.state().pose.rotation)))
    return where(env)


def test_no_reset_moves_an_arm_that_is_outside_its_box(caplog: pytest.LogCaptureFixture) -> None:
    env = make(max_episode_steps=3)
    env.reset(seed=0)
    env.step(FORWARD)
    before = put_outside(env)
    env.step(FORWARD)
    with pytest.raises(ArmError, match=r"for 60 s now: the arm is \d+.\d cm outside its workspace, .*: lead it back"):
        env.step(FORWARD)
    assert np.abs(where(env) - before).max() < 5e-3
    assert sum("before somebody has led it back" in record.message for record in caplog.records) == 1
    env.close()


def test_led_back_it_goes_on(env: FrankaVectorEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    home = twin(env).state().pose
    put_outside(env)
    clock, asked = env.stations[0].clock, [0]
    sleep = clock.sleep

    def led(seconds: float) -> None:
        sleep(seconds)
        asked[0] += 1
        if asked[0] == 20:
            twin(env).place(twin(env).solve(home))

    monkeypatch.setattr(clock, "sleep", led)
    env.reset()
    assert asked[0] >= 20 and "hold" not in env.step(FORWARD)[4]


def test_the_first_episode_begins_from_anywhere_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """A run is begun by somebody who stands beside the arm, which may be anywhere."""
    env = make()
    env._connect()
    put_outside(env)
    env.reset(seed=0)
    assert env.setup.limits.outside(where(env)) < 1e-3
    assert any(
        "outside its workspace" in record.message and "from there" in record.message for record in caplog.records
    )
    env.close()


def test_nothing_is_a_success_while_the_arm_holds() -> None:
    env = make(terminate_on_success=False)
    env.reset(seed=0)
    expert = make_policy(env, "expert")
    for _ in range(40):
        info = env.step(expert())[4]
    assert info["success"][0] and info["task_success"][0]
    twin(env).faults = Faults(frozen=("wrist",))
    _, rewards, _, _, info = env.step(expert())
    assert not info["success"][0] and rewards[0] == 0 and info["task_success"][0]
    env.close()


@pytest.mark.parametrize(("height", "tolerance"), [(0.088, 0.01), (0.088, 0.005), (0.1, 0.01), (0.12, 0.02)])
def test_on_a_twin_a_hand_at_the_target_pose_has_done_the_task(height: float, tolerance: float) -> None:
    env = make(target_ee_pose=(0.5, 0.0, height, -3.14, 0.0, 0.0), position_tolerance=tolerance, max_step=0.002,
               terminate_on_success=False, max_episode_steps=200)  # fmt: skip
    env.reset(seed=0)
    expert = make_policy(env, "expert")
    found = []
    for _ in range(150):  # so slowly that every millimetre of the way down is seen
        info = env.step(expert())[4]
        found.append((bool(info["success"][0]), bool(info["task_success"][0])))
    env.close()
    assert all(done for there, done in found if there)
    assert found[-1] == (True, True) and found[0] == (False, False)
    assert sum(done for there, done in found if not there) < 10  # a millimetre before, and no more


def test_a_late_action_is_not_taken(env: FrankaVectorEnv) -> None:
    env.step(FORWARD)
    env.stations[0].clock.sleep(1.5)
    twin(env).state()
    before = where(env)
    result = env.step(FORWARD)
    assert_holds(env, "based on an observation 1.50 s old", result, before)
    assert "hold" not in env.step(FORWARD)[4]


def test_whoever_waits_for_a_reward_can_hold(env: FrankaVectorEnv) -> None:
    env.step(FORWARD)
    before = where(env)
    result = env.hold("the reward is late")
    assert_holds(env, "the reward is late", result, before)
    with pytest.raises(RefereeError, match="before the first reset"):
        make().hold("early")


def test_the_box_is_a_wall(env: FrankaVectorEnv) -> None:
    for _ in range(12):
        info = env.step(FORWARD)[4]
    assert where(env)[0] <= 0.6 + 2e-3  # 10 cm from the target
    assert info["limited"][0] == "the workspace ends here (x)" and "hold" not in info


def test_an_arm_outside_its_box_is_not_moved(env: FrankaVectorEnv) -> None:
    twin(env).move_to(Pose.from_xyzrpy([0.4, 0.2, 0.3, 3.14, 0, 0]), speed=1.0)
    env.stations[0].observe()
    before = where(env)
    assert_holds(env, "10.1 cm outside its workspace", env.step(FORWARD), before)


def test_no_step_is_longer_than_allowed() -> None:
    limits = Limits(np.full(3, -1.0), np.full(3, 1.0), max_step=0.02, max_turn=0.1, max_tilt=0.3)
    pose = Pose.from_xyzrpy([0.5, 0, 0.2, np.pi, 0, 0])
    target = guarded(pose, np.ones(3), np.ones(3), limits).target
    assert target is not None
    metres, radians = pose.apart(target)
    assert metres == pytest.approx(0.02) and radians == pytest.approx(0.1)
    for _ in range(10):  # over and over about x: the tilt ends
        command = guarded(pose, np.zeros(3), np.array([1.0, 0.0, 0.0]), limits)
        assert command.target is not None
        pose = command.target
    assert command.said == "the hand may not tilt further"
    assert pose.apart(Pose.from_xyzrpy([0.5, 0, 0.2, np.pi, 0, 0]))[1] == pytest.approx(0.3)


def test_success_by_pose_must_be_held_and_is_counted_anew() -> None:
    env = make(success_hold_steps=4)
    env.reset(seed=0)
    expert = make_policy(env, "expert")
    info: dict[str, Any] = {"success": np.array([False])}
    steps = 0
    while not info["success"][0]:
        info = env.step(expert())[4]
        steps += 1
    up = np.array([[0.0, 0.0, 1.0]], np.float32)
    assert env.step(expert())[4]["success"][0]  # second
    while info["success"][0]:
        _, _, terminated, _, info = env.step(up)  # out of the zone: the label is about this frame
        assert not terminated[0]
    held = 0
    for _ in range(40):
        _, _, terminated, _, info = env.step(expert())
        held = held + 1 if (info["final_info"] if terminated[0] else info)["success"][0] else 0
        if terminated[0]:
            break
    assert terminated[0] and held == 4
    env.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target_ee_pose": (500.0, 0, 88, -3.14, 0, 0)}, "millimetres"),
        ({"target_ee_pose": (0.5, 0, 0.088, -180.0, 0, 0)}, "degrees"),
        ({"workspace_low": (0.55, -0.1, 0.0)}, "outside the workspace"),
        ({"workspace_low": (400.0, -100.0, 0.0)}, "millimetres"),
        ({"workspace_high": (0.3, 0.1, 0.4)}, "must be below"),
        ({"workspace_low": (0.3, 0.1)}, "three are needed"),
        ({"reset_ee_pose": (0.5, 0.0, 0.2, 2.0, 0, 0)}, "max_tilt"),
    ],
)
def test_implausible_poses_are_refused_before_anything_is_reached(options: dict[str, Any], said: str) -> None:
    with pytest.raises((ConfigError, PoseError), match=said):
        make(**options)
