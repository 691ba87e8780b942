"""Faults of the twin, its devices and its reward: the arm holds, nothing is a success, and it comes back."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np

from campaign_parts.tally import Tally

TARGET = (0.5, 0.0, 0.088, -3.14, 0.0, 0.0)
BRAKING, STILL = 2e-3, 1e-3
"""Metres: of the first held step, and of all later ones together."""
HELD_STEPS = 10
FAULTS: dict[str, dict[str, Any]] = {
    "frozen camera": {"frozen": ("wrist",)},
    "dark camera": {"dark": ("front",)},
    "old frames": {"frame_seconds": 0.5},
    "frames from the future": {"frame_seconds": -0.5},
    "frames without a stamp": {"frame_seconds": float("nan")},
    "states from the future": {"state_seconds": -0.5},
    "old states": {"state_seconds": 0.5},
    "late answers": {"reply_seconds": 0.4},
    "lost connection": {"lost": True},
    "refused commands": {"refused": True},
}
OTHERS = ("SpaceMouse unplugged", "reward time-out", "late action", "arm out of its box")


def run(seed: int, count: int, folder: Path) -> list[Tally]:
    """One row; `count` faults, each begun at a random step of a random motion."""
    from referee.config.arm import FrankaEnvConfig, RobotConfig
    from referee.envs.franka.intervention import make_arm
    from referee.robots.spacemouse import InputError, Motion, ScriptedInput

    tally, choose = Tally("twin faults"), random.Random(seed)
    unplugged = [False]

    def read() -> Motion:
        if unplugged[0]:
            raise InputError("the SpaceMouse is gone: plug it in again")
        return Motion()

    robot = RobotConfig(driver="twin", realtime=False, scene="PegInsertion")
    config = FrankaEnvConfig(
        robot=robot, no_gripper=True, obs_mode="state", target_ee_pose=TARGET, fault_seconds=1e6,
        max_episode_steps=10_000, terminate_on_success=False,
    )  # fmt: skip
    env = make_arm(config, ScriptedInput(read))
    names = [*FAULTS, *OTHERS]
    for number in range(count):
        name = names[number % len(names)]
        with tally.trial(name):
            env.reset(seed=choose.randrange(1 << 30))
            _fault(env, name, choose, unplugged, tally)
    env.close()
    return [tally]


def _fault(env: Any, name: str, choose: random.Random, unplugged: list[bool], tally: Tally) -> None:
    from referee.robots.twin import Faults

    inner = env.env
    station = inner.stations[0]
    arm = station.arm
    action = np.array([[choose.uniform(-1, 1) for _ in range(3)]], np.float32)
    for _ in range(choose.randrange(1, 4)):
        env.step(action)
    if name in FAULTS:
        arm.faults = Faults(**FAULTS[name])
    unplugged[0] = name == "SpaceMouse unplugged"
    if name == "arm out of its box":
        from referee.robots.poses import Pose

        arm.place(arm.solve(Pose(np.array([0.45, 0.35, 0.15]), arm.state().pose.rotation)))
        station.observe()
    if name == "frozen camera":  # nobody can know before time has passed
        info = env.step(action)[4]
        tally.expect(bool(info.get("_unseen", [False])[0]), f"{name}: not noticed within a step")
    place, first = arm.sim.tcp[0].copy(), None
    for step in range(HELD_STEPS):
        if name == "late action":
            station.clock.sleep(1.5)
        info = env.hold("the reward is late")[4] if name == "reward time-out" else env.step(action)[4]
        if not info.get("_hold", [False])[0]:
            tally.defect("wrong", f"{name}: the arm moved in step {step}")
            break
        tally.expect(not info["success"][0], f"{name}: a success while the arm holds")
        if first is None:
            first = arm.sim.tcp[0].copy()
            braking = float(np.linalg.norm(first - place))
            tally.worst("millimetres of braking, worst", 1e3 * braking)
            tally.expect(braking <= BRAKING, f"{name}: braking took {1e3 * braking:.2f} mm")
        later = float(np.linalg.norm(arm.sim.tcp[0] - first))
        tally.worst("millimetres in later held steps, worst", 1e3 * later)
        tally.expect(later <= STILL, f"{name}: {1e3 * later:.2f} mm while it holds")
    arm.faults, unplugged[0] = Faults(), False
    if name == "arm out of its box":
        arm.place(arm.solve(inner.setup.start))
        return
    if name == "late action":
        station.observe()
    env.step(action)
    info = env.step(action)[4]
    tally.expect("hold" not in info, f"{name}: the arm does not come back: {info.get('hold')}")
