"""An environment around another: it is described alike, and what it does not change is the other's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from referee.envs.contract import Observation, RefereeVectorEnv

ALIKE = ("num_envs", "single_observation_space", "single_action_space", "observation_space", "action_space", "obs_mode",
         "cameras", "image_size", "max_episode_steps", "proprio_size", "task_description",
         "metadata", "step_signals")  # fmt: skip


class EnvWrapper(RefereeVectorEnv):
    """What environments around others share; each has its own way to reset, step and restore."""

    def __init__(self, env: RefereeVectorEnv) -> None:
        self.env = env
        for name in ALIKE:
            setattr(self, name, getattr(env, name))

    @property
    def unwrapped(self) -> Any:
        """The env inside."""
        return self.env.unwrapped

    def render_cameras(
        self,
        env_ids: Sequence[int] | np.ndarray | None = None,
        *,
        final: bool = False,
        cameras: Sequence[str] | None = None,
    ) -> Observation:
        """See `RefereeVectorEnv`."""
        return self.env.render_cameras(env_ids, final=final, cameras=cameras)

    def save_state(self) -> dict[str, np.ndarray]:
        """See `RefereeVectorEnv`."""
        return self.env.save_state()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the env inside."""
        self.env.close(**kwargs)
