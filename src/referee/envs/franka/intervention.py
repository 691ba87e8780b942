"""A person at a SpaceMouse overrides whoever acts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from referee.config.arm import FrankaEnvConfig
from referee.envs.contract import Observation, RefereeVectorEnv, StepResult
from referee.envs.franka.env import FrankaVectorEnv
from referee.envs.franka.expert import expert_hand
from referee.envs.wrapper import EnvWrapper
from referee.robots.clock import Clock, WallClock
from referee.robots.spacemouse import InputDevice, InputError, Motion, open_spacemouse
from referee.robots.steering import open_steering


def make_arm(config: FrankaEnvConfig, device: InputDevice | None = None) -> RefereeVectorEnv:
    """The arm of a configuration, with a SpaceMouse if it says so. device: takes its place."""
    env = FrankaVectorEnv(config)
    if not config.use_spacemouse and device is None:
        return env
    twin = config.robot.driver == "twin"
    who = config.teleoperator or ("expert" if twin else "person")
    if device is None and who == "expert":
        device = expert_hand(env)
    return Intervention(env, device, seconds=config.intervention_seconds, keyboard=who == "keyboard")


class Intervention(EnvWrapper):
    """Any motion or button takes over for a while; then whoever acts goes on.

    The action that was taken instead is in `info["intervene_action"]` f32[n,a], with the mask `_intervene_action`.
    The left button closes the gripper, the right one opens it; without a button it stays as it is.
    """

    env: FrankaVectorEnv

    def __init__(
        self,
        env: FrankaVectorEnv,
        device: InputDevice | None = None,
        *,
        seconds: float = 0.5,
        clock: Clock | None = None,
        keyboard: bool = False,
    ) -> None:
        """device: None opens a SpaceMouse, or the `keyboard`, at the first reset.

        clock: of the loop; that of the arm if not given.
        """
        super().__init__(env)
        self.step_signals = (*env.step_signals, "intervened")
        self._device, self._seconds, self._given_clock = device, seconds, clock
        self._keyboard, self._until = keyboard, -np.inf

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """See `RefereeVectorEnv`."""
        if self._device is None:
            wall = WallClock()
            self._device = (
                open_steering(wall) if self._keyboard else open_spacemouse(wall, max_age=self.env.config.max_age)
            )
        self.env.tell_progress = self.tell_progress
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: np.ndarray) -> StepResult:
        """See `RefereeVectorEnv`; the person's action instead, while there is one. Without the device, it holds."""
        actions = np.asarray(actions)
        try:
            wanted = self._wanted()
        except InputError as error:
            return self.env.hold(str(error))
        if wanted is not None:
            self.check_actions(actions)  # a policy that diverges is found out even while a person drives
            actions = np.tile(wanted, (self.num_envs, 1))
        result = self.env.step(actions)
        if wanted is not None:
            done = ~result[4].get("_executed_action", np.zeros(self.num_envs, bool))
            result[4].update(intervene_action=actions.astype(np.float32), _intervene_action=done)
        return result

    def hold(self, reason: str) -> StepResult:
        """See `FrankaVectorEnv.hold`."""
        return self.env.hold(reason)

    def restore_state(self, state: dict[str, np.ndarray]) -> Observation:
        """See `RefereeVectorEnv`."""
        return self.env.restore_state(state)

    def close_extras(self, **kwargs: Any) -> None:
        """Let go of the device, too."""
        if self._device is not None:
            self._device.close()
        super().close_extras(**kwargs)

    def _wanted(self) -> np.ndarray | None:
        """The person's action f32[a]; None while nobody touches the device."""
        assert self._device is not None
        motion = self._device.read()
        clock = self._given_clock or self.env.stations[0].clock
        if motion.active:
            self._until = clock.now() + self._seconds
        return self.action_of(motion) if clock.now() < self._until else None

    def action_of(self, motion: Motion) -> np.ndarray:
        """A motion as an action f32[a] of this environment."""
        rules = self.env.setup.rules
        parts = [motion.translation, *([motion.rotation] if rules.rotates else [])]
        if rules.has_gripper:
            parts.append(np.array([float(motion.right) - float(motion.left)]))
        return np.concatenate(parts).astype(np.float32)
