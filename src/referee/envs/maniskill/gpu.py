"""Worlds on a GPU: one batch of ManiSkill's, in this process, with the interface of `Pool`.

Its parts run on the CPU in tests, one environment at a time; a whole batch needs CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from referee.config.maniskill import ManiSkillEnvConfig
from referee.envs.maniskill.shared import Arrays
from referee.envs.maniskill.world import World, take_pictures


class Batch:
    """All worlds of a configuration in one simulation, which also draws."""

    def __init__(self, config: ManiSkillEnvConfig, *, gpu: bool = True) -> None:
        self._config = config
        self._world = World(config, config.num_envs, gpu=gpu, draws=True)
        self.facts = self._world.facts
        self.arrays = Arrays(config, self.facts)
        self._last = np.zeros_like(self.arrays.images)
        """Pictures of last states: here they are drawn before the next episodes begin, all at once."""
        self._looked = config.obs_mode != "state"
        """Whether anybody has ever wanted pictures; until then, none are drawn at the end of episodes."""

    def begin(self, ids: np.ndarray, seeds: np.ndarray, *, keep: bool) -> None:
        """See `Pool.begin`."""
        if keep and self._looked:
            self._last[ids] = self._pictures(self._config.cameras)[ids]
        self._world.begin(ids.tolist(), seeds.tolist())
        self.look(tell_progress=False)

    def step(self, *, tell_progress: bool) -> None:
        """See `Pool.step`."""
        arrays = self.arrays
        arrays.rewards[:] = self._world.step(arrays.actions[np.arange(len(arrays.elapsed)), arrays.elapsed])
        self.look(tell_progress=tell_progress)

    def look(self, *, tell_progress: bool) -> None:
        """See `Pool.look`."""
        world, arrays = self._world, self.arrays
        arrays.states[:], arrays.success[:] = world.states, world.success
        if self.facts.grasp:
            arrays.grasp[:] = world.grasp
        if tell_progress and self.facts.progress:
            arrays.progress[:] = world.progress

    def extra_state(self) -> dict[str, np.ndarray]:
        """ManiSkill's own state vectors: a GPU does not live an episode twice in the same way."""
        return {"simulation": self._world.snapshot()}

    def replay(self, seeds: np.ndarray, state: dict[str, np.ndarray], *, tell_progress: bool) -> None:
        """Take up saved states."""
        self._world.restore(state["simulation"])
        self.look(tell_progress=tell_progress)

    def draw(self, ids: Sequence[int], final: bool, cameras: Sequence[str]) -> np.ndarray:
        """See `Pool.draw`."""
        self._looked = True
        if not final:
            return self._pictures(cameras)[list(ids)]
        views = [self._config.cameras.index(name) for name in cameras]
        return self._last[list(ids)][:, views]

    def close(self) -> None:
        """Free the simulation."""
        self._world.env.close()

    def _pictures(self, cameras: Sequence[str]) -> np.ndarray:
        return take_pictures(self._world.env, cameras, show_goal=self._config.show_goal)
