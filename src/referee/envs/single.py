"""One arm as a plain Gymnasium environment: `gymnasium.make("referee/PickCube-v0")` after `import referee.envs`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from referee.config.schema import PandaEnvConfig
from referee.envs.make import make_vec

TASKS = ("Reach", "PushCube", "PickCube", "PegInsertion")


class SingleArm(gym.Env[np.ndarray, np.ndarray]):
    """The embedded Panda for anybody's loop: a state to act on, and pictures to be judged by."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(self, task: str = "PickCube", *, render_mode: str | None = None, **options: Any) -> None:
        """options: further fields of `PandaEnvConfig`, as `cameras` or `image_size`."""
        self.render_mode = render_mode
        self.arm = make_vec(PandaEnvConfig(task=task, num_envs=1, num_threads=1, **options))
        self.observation_space = self.arm.single_observation_space["states"]  # type: ignore[index]
        self.action_space = self.arm.single_action_space
        self._ended = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self._ended = False
        observations, info = self.arm.reset(seed=seed)
        return observations["states"][0], {"success": bool(info["success"][0])}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One control step; the truth is in `info["success"]`."""
        observations, rewards, terminated, truncated, info = self.arm.step(np.asarray(action)[None])
        self._ended = bool(terminated[0] or truncated[0])  # the arm has begun its next episode then
        state = info["final_obs"][0]["states"] if self._ended else observations["states"][0]
        truth = (info["final_info"] if self._ended else info)["success"][0]
        return state, float(rewards[0]), bool(terminated[0]), bool(truncated[0]), {"success": bool(truth)}

    def pictures(self) -> dict[str, np.ndarray]:
        """`main_images` and `extra_view_images` of the present state, each uint8[1,…]."""
        return self.arm.render_cameras(final=self._ended)

    def render(self) -> np.ndarray:
        """uint8[H,W,3] of the first camera."""
        return self.pictures()["main_images"][0]

    def close(self) -> None:
        """Free the simulation."""
        self.arm.close()


def register() -> None:
    """Make the tasks known to Gymnasium, as `referee/<task>-v0`."""
    for task in TASKS:
        name = f"referee/{task}-v0"
        if name not in gym.registry:
            gym.register(id=name, entry_point="referee.envs.single:SingleArm", kwargs={"task": task})
