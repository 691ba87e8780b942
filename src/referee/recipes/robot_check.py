"""Recipe: test each device of a preset before a person trusts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import Console

from referee.config import Config, FrankaEnvConfig
from referee.config.arm import ROBOT_IP
from referee.envs.franka.setup import Setup, open_arm, open_camera
from referee.errors import ConfigError, RefereeError
from referee.learn.environments import with_robot
from referee.robots.arm import Arm
from referee.robots.check import PATIENCE, Found, check_arm, check_camera, check_spacemouse
from referee.robots.clock import Clock, WallClock
from referee.robots.spacemouse import open_spacemouse


def robot_check(config: Config, console: Console) -> int:
    """Print one line for each device; returns 2 if any of them is not well. Nothing moves."""
    failed = False

    def say(words: str) -> None:
        console.print(words, highlight=False, markup=False, soft_wrap=True)

    for found in findings(with_robot(config), say):
        mark, colour = ("✓", "green") if found.good else ("✗", "red")
        console.print(f"[{colour}]{mark}[/] {found.what:<16} ", end="")
        say(found.detail)
        if found.fix:
            console.print(f"  {'':<16} → {found.fix}", style="dim", highlight=False, markup=False, soft_wrap=True)
        failed |= not found.good
    return 2 if failed else 0


def findings(config: Config, say: Callable[[str], None]) -> Iterator[Found]:
    """What is found about the arm, the cameras and the SpaceMouse of a configuration, each for itself.

    say: what a person is asked to do meanwhile.
    """
    env = config.env.train or config.env.eval
    if not isinstance(env, FrankaEnvConfig):
        raise ConfigError("this preset has no arm: env.train.env_type (or env.eval's) must be franka")
    yield _configuration(env)
    yield from _devices(env)
    if (
        env.use_spacemouse
        and env.teleoperator not in ("expert", "keyboard")
        and (env.robot.driver != "twin" or env.teleoperator)
    ):
        yield _spacemouse(say)


def _configuration(env: FrankaEnvConfig) -> Found:
    try:
        limits = Setup.of(env).limits
    except RefereeError as error:
        return _bad("configuration", error)
    box = " × ".join(f"{low:.2f}..{high:.2f}" for low, high in zip(limits.low, limits.high, strict=True))
    return Found.ok("workspace", f"{box} m, at most {100 * env.max_step:g} cm per step at {env.control_hz:g} Hz")


def _devices(env: FrankaEnvConfig) -> Iterator[Found]:
    """The arm, whatever the cameras do, and each camera, whatever the others do; without what no key names."""
    twin = env.robot.driver == "twin"
    clock: Clock = WallClock()
    arm: Arm | None = None
    if twin or env.robot.robot_ip not in (None, ROBOT_IP):
        try:
            arm, clock = open_arm(env)
            yield from check_arm(arm, clock)
        except RefereeError as error:
            yield _bad("arm", error)
    there = len(env.camera_serials) if not twin else len(env.cameras) if arm is not None else 0
    for name in env.cameras[:there]:  # a twin has its own
        try:
            camera = open_camera(env, name, arm, clock)
        except RefereeError as error:
            yield _bad(f"camera {name}", error)
        else:
            yield check_camera(camera, clock, control_hz=env.control_hz)
            camera.close()
    if arm is not None:
        arm.close()


def _spacemouse(say: Callable[[str], None]) -> Found:
    try:
        device = open_spacemouse(WallClock())
    except RefereeError as error:
        return _bad("SpaceMouse", error)
    try:
        say(f"  SpaceMouse       move the puck now, within {PATIENCE:.0f} s")
        return check_spacemouse(device, WallClock())
    finally:
        device.close()


def _bad(what: str, error: RefereeError) -> Found:
    """One line as what is wrong, and what to do."""
    wrong, _, fix = str(error).partition(": ")
    return Found.bad(what, wrong, fix)
