"""From the configuration of an arm to a station: poses and boxes are checked before anything is reached."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from referee.config.arm import ROBOT_IP, FrankaEnvConfig
from referee.envs.franka.guard import Freshness, Limits, tilt
from referee.envs.franka.station import Rules, Station
from referee.envs.panda.tasks import task_named
from referee.errors import ConfigError, RefereeError
from referee.robots.arm import Arm
from referee.robots.cameras import Camera, open_realsense
from referee.robots.clock import Clock, SimulatedClock, WallClock
from referee.robots.poses import DOWN, Pose, checked_pose
from referee.robots.twin import Faults, Twin

ASIDE, BELOW, ABOVE = 0.10, 0.03, 0.20
"""Metres around a target pose that an arm may move in, where nobody says otherwise."""
HOVER = 0.10
"""Metres over the target at which an episode begins, where nobody says otherwise."""
TWIN_START = Pose(np.array([0.48, 0.0, 0.20]), DOWN)


@dataclass(frozen=True)
class Setup:
    """The checked poses and limits of a configuration."""

    target: Pose | None
    start: Pose
    limits: Limits
    rules: Rules

    @classmethod
    def of(cls, config: FrankaEnvConfig) -> Setup:
        """Raises ConfigError or PoseError, one line with the key and the fix."""
        _check(config)
        target = None if config.target_ee_pose is None else checked_pose(config.target_ee_pose, "target_ee_pose")
        low, high = _box(config, target)
        limits = Limits(low, high, config.max_step, config.max_turn, config.max_tilt)
        start = _start(config, target)
        for name, pose in (("target_ee_pose", target), ("reset_ee_pose", start)):
            if pose is None:
                continue
            if limits.outside(pose.position) > 0:
                raise ConfigError(
                    f"{name} is at {_said(pose.position)}, outside the workspace from {_said(low)} to {_said(high)}: "
                    "check both (metres, frame of the arm's base), or widen workspace_low and workspace_high"
                )
            if tilt(pose.rotation) > config.max_tilt + 1e-6:
                raise ConfigError(
                    f"{name} tilts the hand by {tilt(pose.rotation):.2f} radians, but max_tilt is {config.max_tilt:g}: "
                    "check roll, pitch, yaw, or raise max_tilt"
                )
        return cls(target, start, limits, _rules(config))


def _check(config: FrankaEnvConfig) -> None:
    robot = config.robot
    if robot.driver == "twin":
        if config.camera_serials:  # a twin has no need of them; they are for the arm that comes after it
            _check_serials(config)
        if config.num_envs > 1 and robot.realtime:
            raise ConfigError(f"num_envs={config.num_envs} twins cannot share one clock: set robot.realtime=false")
        return
    if config.num_envs != 1:
        raise ConfigError(f"num_envs={config.num_envs}, but there is one arm: set it to 1")
    if robot.robot_ip in (None, ROBOT_IP):
        raise ConfigError(
            "robot.robot_ip is not set: give the address of your arm's controller, as robot.robot_ip=172.16.0.2 (or in "
            "cluster.node_groups), or try without an arm: robot.driver=twin"
        )
    _check_serials(config)
    if config.target_ee_pose is None and (config.reset_ee_pose is None or config.workspace_low is None):
        raise ConfigError(
            "target_ee_pose is not set (TARGET_EE_POSE): lead the hand to where the task is done, read its pose "
            "(`referee robot check`), and give [x, y, z, roll, pitch, yaw] in metres and radians; or give "
            "reset_ee_pose, workspace_low and workspace_high"
        )


def _check_serials(config: FrankaEnvConfig) -> None:
    if len(config.camera_serials) != len(config.cameras):
        raise ConfigError(
            f"there are {len(config.cameras)} cameras ({', '.join(config.cameras)}) but {len(config.camera_serials)} "
            "camera_serials: give one serial number for each, as `rs-enumerate-devices -s` lists them, or other cameras"
        )


def _box(config: FrankaEnvConfig, target: Pose | None) -> tuple[np.ndarray, np.ndarray]:
    given = config.workspace_low, config.workspace_high
    for name, corner in zip(("workspace_low", "workspace_high"), given, strict=True):
        if corner is not None and len(corner) != 3:
            raise ConfigError(f"{name} has {len(corner)} numbers, but three are needed: x, y, z in metres")
    if target is not None:
        low, high = target.position - np.array([ASIDE, ASIDE, BELOW]), target.position + np.array([ASIDE, ASIDE, ABOVE])
    elif config.robot.driver == "twin":
        task = task_named(config.robot.scene)
        low, high = task.low, task.high
    elif None in given:
        missing = "workspace_low" if given[0] is None else "workspace_high"
        raise ConfigError(f"{missing} is not set, and there is no target_ee_pose to take it from: give x, y, z")
    low = low if given[0] is None else np.array(given[0])
    high = high if given[1] is None else np.array(given[1])
    if np.abs([low, high]).max() > 2:
        raise ConfigError(
            f"the workspace from {_said(low)} to {_said(high)} is not in metres: divide millimetres by 1000"
        )
    if (high - low).min() <= 0:
        raise ConfigError(f"workspace_low {_said(low)} must be below workspace_high {_said(high)} on every axis")
    return low, high


def _start(config: FrankaEnvConfig, target: Pose | None) -> Pose:
    if config.reset_ee_pose is not None:
        return checked_pose(config.reset_ee_pose, "reset_ee_pose")
    return TWIN_START if target is None else target.moved(np.array([0.0, 0.0, HOVER]))


def _rules(config: FrankaEnvConfig) -> Rules:
    return Rules(
        config.control_hz,
        rotates=config.control_mode == "ee_delta_rotation",
        has_gripper=not config.no_gripper,
        reset_lift=config.reset_lift,
        reset_speed=config.reset_speed,
        freshness=Freshness(config.max_age, config.max_ahead),
        max_action_age=config.max_action_age,
        fault_seconds=config.fault_seconds,
    )


def _said(position: np.ndarray) -> str:
    return f"[{', '.join(f'{value:g}' for value in np.round(position, 3))}]"


def make_station(config: FrankaEnvConfig, setup: Setup) -> Station:
    """Arm and cameras, opened; the arm itself is reached with the first episode."""
    arm, clock = open_arm(config)
    cameras: list[Camera] = []
    try:
        for name in config.cameras:
            cameras.append(open_camera(config, name, arm, clock))
    except RefereeError:
        for camera in cameras:
            camera.close()
        arm.close()
        raise
    return Station(arm, cameras, clock, setup.limits, setup.rules)


def open_arm(config: FrankaEnvConfig) -> tuple[Arm, Clock]:
    """The arm, not reached yet, and the clock that it goes by."""
    robot = config.robot
    if robot.driver != "twin":
        from referee.robots.franky import Franky

        wall = WallClock()
        assert robot.robot_ip is not None
        return Franky(robot.robot_ip, wall, stiffness=robot.stiffness, has_gripper=not config.no_gripper), wall
    clock: Clock = WallClock() if robot.realtime else SimulatedClock()
    task = task_named(robot.scene)
    faults = Faults(reply_seconds=robot.reply_seconds, frame_seconds=robot.frame_seconds)
    twin = Twin(
        task.scene, clock, fingers=task.fingers, cameras=config.cameras, image_size=config.image_size, faults=faults
    )
    return twin, clock


def open_camera(config: FrankaEnvConfig, name: str, arm: Arm | None, clock: Clock) -> Camera:
    """One of the cameras of a configuration; a twin has its own. arm: None while it is not there."""
    place = config.cameras.index(name)
    if config.robot.driver == "twin":
        assert isinstance(arm, Twin)
        return arm.cameras[place]
    return open_realsense(name, config.camera_serials[place], config.image_size, clock)
