"""Recipe: test each device of a preset before a person trusts it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from referee.config import Config, FrankaEnvConfig
from referee.envs.franka.setup import Setup, make_station
from referee.errors import ConfigError, RefereeError
from referee.robots.check import Found, check_arm, check_camera, check_spacemouse
from referee.robots.clock import WallClock
from referee.robots.spacemouse import open_spacemouse
from referee.runners.environments import with_robot


def robot_check(config: Config, console: Console) -> int:
    """Print one line for each device; returns 2 if any of them is not well. Nothing moves."""
    failed = False
    for found in findings(with_robot(config)):
        mark, colour = ("✓", "green") if found.good else ("✗", "red")
        console.print(f"[{colour}]{mark}[/] {found.what:<16} {found.detail}", highlight=False, soft_wrap=True)
        if found.fix:
            console.print(f"  {'':<16} → {found.fix}", style="dim", highlight=False, markup=False, soft_wrap=True)
        failed |= not found.good
    return 2 if failed else 0


def findings(config: Config) -> Iterator[Found]:
    """What is found about the arm, the cameras and the SpaceMouse of a configuration."""
    env = config.env.train or config.env.eval
    if not isinstance(env, FrankaEnvConfig):
        raise ConfigError("this preset has no arm: env.train.env_type (or env.eval's) must be franka")
    try:
        setup = Setup.of(env)
    except RefereeError as error:
        what, _, fix = str(error).partition(": ")
        yield Found.bad("configuration", what, fix)
        return
    low, high = setup.limits.low, setup.limits.high
    box = " × ".join(f"{a:.2f}..{b:.2f}" for a, b in zip(low, high, strict=True))
    yield Found.ok("workspace", f"{box} m, at most {100 * env.max_step:g} cm per step at {env.control_hz:g} Hz")
    try:
        station = make_station(env, setup)
    except RefereeError as error:
        what, _, fix = str(error).partition(": ")
        yield Found.bad("devices", what, fix)
    else:
        yield from check_arm(station.arm, station.clock)
        for camera in station.cameras:
            yield check_camera(camera, station.clock, control_hz=env.control_hz)
        station.close()
    if env.use_spacemouse and env.teleoperator != "expert" and (env.robot.driver != "twin" or env.teleoperator):
        yield _spacemouse()


def _spacemouse() -> Found:
    try:
        device = open_spacemouse(WallClock())
    except RefereeError as error:
        what, _, fix = str(error).partition(": ")
        return Found.bad("SpaceMouse", what, fix)
    try:
        return check_spacemouse(device, WallClock())
    finally:
        device.close()
