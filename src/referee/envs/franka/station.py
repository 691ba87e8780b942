"""One arm with its cameras: one step after another at a fixed rate, and stillness whenever something is not right."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from referee.envs.franka.guard import Command, Freshness, Limits, guarded, strayed
from referee.robots.arm import Arm, ArmError, ArmState
from referee.robots.cameras import Camera, CameraError, Frame
from referee.robots.clock import Clock
from referee.robots.poses import Pose

OPENS, CLOSES = 0.5, -0.5
"""Gripper actions beyond these open or close it; between them it stays as it is."""
RECOVERY = 10.0
"""Seconds that an arm and its cameras have to come back before an episode."""
RETRY = 0.5
LED_BACK = 60.0
"""Seconds that somebody has to lead an arm back that is outside its box when an episode should begin."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rules:
    """How a station works; see `FrankaEnvConfig` for what each means."""

    control_hz: float
    rotates: bool
    has_gripper: bool
    reset_lift: float
    reset_speed: float
    freshness: Freshness
    """Of the stamps of frames and of the arm's states."""
    max_action_age: float
    fault_seconds: float

    @property
    def action_size(self) -> int:
        """x, y, z; three turns where it rotates; the gripper where there is one."""
        return 3 + 3 * self.rotates + self.has_gripper


@dataclass(frozen=True)
class Seen:
    """What one observation is made of."""

    state: ArmState
    frames: tuple[Frame, ...]
    time: float
    """When all of it was there."""

    def vector(self) -> np.ndarray:
        """f32[24]: joints 7, their speeds 7, position 3, two axes of the hand 6, gripper 1."""
        state, axes = self.state, self.state.pose.rotation[:, :2].T.ravel()
        width = np.array([state.gripper_width])
        return np.concatenate([state.joints, state.speeds, state.pose.position, axes, width]).astype(np.float32)


VECTOR = 24


@dataclass(frozen=True)
class Outcome:
    """What a step led to."""

    seen: Seen
    """The latest that can be relied on: after a fault, that of an earlier step."""
    done: np.ndarray
    """f32[a]: the action that was really taken; zeros while it held."""
    held: str | None = None
    """Why the arm did not move, where it did not."""
    said: str | None = None
    """What was cut off from the action."""
    fault: str | None = None
    """Why `seen` is old: then nothing is known of this state. The arm has been stopped."""
    given_up: bool = False
    """The fault has lasted too long."""


class _Outside(ArmError):
    """Nobody has led the arm back: no time brings it back."""


class Station:
    """Commands one arm. What it does not know to be fresh, it does not act on."""

    def __init__(self, arm: Arm, cameras: Sequence[Camera], clock: Clock, limits: Limits, rules: Rules) -> None:
        self.arm, self.cameras, self.clock = arm, tuple(cameras), clock
        self.limits, self.rules = limits, rules
        self._seen: Seen | None = None
        self._next = 0.0
        self._fault: str | None = None
        self._fault_since = 0.0
        self._still = False
        self._opened = True
        self._began = False
        self.connected = False

    # --- episodes ---

    def begin(self, start: Pose) -> None:
        """Bring arm and cameras back from any fault, and the hand to where an episode begins.

        An arm that is outside its box is not moved, except for the first episode: then somebody has just begun the run.
        """
        failing: float | None = None
        while True:
            try:
                self._come_back()
                self._wait_inside()
                self._go(start)
                self._began = True
                return
            except _Outside:
                raise
            except ArmError as error:
                now = self.clock.now()
                failing = now if failing is None else failing
                if now - failing > RECOVERY:
                    raise ArmError(f"no episode can begin, for {RECOVERY:.0f} s now: {error}") from error
                if now == failing:
                    _log.warning("the arm is not at its start yet, it recovers and tries again: %s", error)
                self.clock.sleep(RETRY)

    def observe(self, *, wait: bool = True) -> Seen:
        """The first observation of an episode, after a step's time; raises ArmError if there is none for long."""
        end = self.clock.now() + RECOVERY
        if wait:
            self.clock.sleep(1 / self.rules.control_hz)
        while True:
            seen, problem = self._look(again=False)
            if seen is not None:
                self._seen, self._next, self._fault, self._still = seen, self.clock.now(), None, False
                return seen
            if self.clock.now() > end:
                raise ArmError(f"no episode can begin, for {RECOVERY:.0f} s now: {problem}")
            self.clock.sleep(RETRY)

    def act(self, action: np.ndarray) -> Outcome:
        """One step: f32[a] in −1..1. The arm moves only if all that the action is based on is fresh."""
        assert self._seen is not None
        if self._fault is not None:
            return self._stand(self._fault)
        based_on = replace(self.rules.freshness, max_age=self.rules.max_action_age)
        if (problem := based_on.problem(self._seen.time, self.clock.now())) is not None:
            return self._stand(f"the action is based on an observation {problem}")
        try:
            command = self._command(action)
        except (ArmError, CameraError) as error:
            return self._stand(str(error))
        if command.target is None:
            return self._stand(command.said or "the arm must not move")
        self._still = False
        return self._outcome(action.astype(np.float32), held=None, said=command.said)

    def hold(self, reason: str) -> Outcome:
        """One step in which the arm stands still, because somebody above says so."""
        return self._stand(reason)

    def close(self) -> None:
        """Let go of the arm and the cameras."""
        for camera in self.cameras:
            camera.close()
        self.arm.close()

    # --- inside ---

    def _come_back(self) -> None:
        """An arm that can be commanded, or an ArmError."""
        if not self.connected:
            self.arm.connect()
            self.connected = True
        self.arm.recover()

    def _wait_inside(self) -> None:
        """Until the hand is in its box, which nobody but a person can bring about."""
        began = self.clock.now()
        while (where := strayed(self.arm.state().pose, self.limits)) is not None:
            now = self.clock.now()
            if not self._began:
                _log.warning("%s: it goes to its start from there", where)
                return
            if now == began:
                _log.warning("%s: no episode begins before somebody has led it back", where)
            if now - began > LED_BACK:
                raise _Outside(f"no episode can begin, for {LED_BACK:.0f} s now: {where}: lead it back and start again")
            self.clock.sleep(RETRY)

    def _go(self, start: Pose) -> None:
        """To where an episode begins, by way of a lifted hand."""
        here = self.arm.state().pose
        self.arm.stop()
        if self.rules.has_gripper:
            self.arm.gripper(opened=True)
            self._opened = True
        lifted = here.moved(np.array([0.0, 0.0, self.rules.reset_lift]))
        if self.rules.reset_lift and lifted.position[2] <= self.limits.high[2]:
            self.arm.move_to(lifted, speed=self.rules.reset_speed)
        self.arm.move_to(start, speed=self.rules.reset_speed)

    def _command(self, action: np.ndarray) -> Command:
        """Move, or raise before anything has moved."""
        assert self._seen is not None
        waited = self.clock.now() - self._seen.time >= 1 / self.rules.control_hz
        state, _ = self._fresh(self._seen.frames if waited else None)
        turn = action[3:6] if self.rules.rotates else None
        command = guarded(state.pose, action[:3], turn, self.limits)
        if command.target is not None:
            self.arm.move(command.target)
            if self.rules.has_gripper:
                self._grip(float(action[-1]))
        return command

    def _grip(self, wish: float) -> None:
        """Only a change is told: a gripper that is asked again while it moves begins anew."""
        if (wish >= OPENS and not self._opened) or (wish <= CLOSES and self._opened):
            self._opened = wish >= OPENS
            self.arm.gripper(opened=self._opened)

    def _stand(self, reason: str) -> Outcome:
        self._stop(reason)
        return self._outcome(np.zeros(self.rules.action_size, np.float32), held=reason, said=None)

    def _stop(self, reason: str) -> None:
        """Where the arm is becomes its target; told once, and again until the arm has taken it."""
        if self._still:
            return
        _log.warning("the arm holds: %s", reason)
        try:
            self.arm.stop()
            self._still = True
        except ArmError as error:  # it stands still at its last target by itself
            _log.warning("it could not be told to stop: %s", error)

    def _outcome(self, done: np.ndarray, *, held: str | None, said: str | None) -> Outcome:
        self._wait()
        seen, problem = self._look(again=True)
        now = self.clock.now()
        if seen is not None:
            self._seen, self._fault = seen, None
        elif self._fault is None:
            self._fault, self._fault_since = problem, now
        else:
            self._fault = problem
        if self._fault is not None:  # at once: the next action may be long in coming
            self._stop(self._fault)
        assert self._seen is not None
        given_up = self._fault is not None and now - self._fault_since >= self.rules.fault_seconds
        return Outcome(self._seen, done, held, said, self._fault, given_up)

    def _wait(self) -> None:
        """Until this step ends: the grid of the control rate, or a whole period if that has passed already."""
        period, now = 1 / self.rules.control_hz, self.clock.now()
        self._next += period
        if self._next < now + 0.3 * period:
            self._next = now + period
        self.clock.sleep(self._next - now)

    def _look(self, *, again: bool) -> tuple[Seen | None, str | None]:
        """What is there now, or what is wrong. again: a frame that was seen before is no new one."""
        try:
            state, frames = self._fresh(self._seen.frames if again and self._seen is not None else None)
        except (ArmError, CameraError) as error:
            return None, str(error)
        return Seen(state, frames, self.clock.now()), None

    def _fresh(self, before: Sequence[Frame] | None) -> tuple[ArmState, tuple[Frame, ...]]:
        """State and frames whose stamps are in range; ArmError or CameraError else. before: frames that are not new."""
        state = self.arm.state()
        frames = tuple(camera.frame() for camera in self.cameras)
        now, freshness = self.clock.now(), self.rules.freshness
        if (problem := freshness.problem(state.time, now)) is not None:
            raise ArmError(f"the newest state of the arm is {problem}")
        old: Sequence[Frame | None] = before or [None] * len(frames)
        for camera, frame, last in zip(self.cameras, frames, old, strict=True):
            if (problem := freshness.problem(frame.time, now)) is not None:
                raise CameraError(f"the newest frame of camera {camera.name} is {problem}")
            if last is not None and frame.number == last.number:
                raise CameraError(f"camera {camera.name} gives the same frame again (number {frame.number})")
        return state, frames
