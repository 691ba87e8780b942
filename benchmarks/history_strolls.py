"""A hand that strolls through all of the workspace, and its recordings: states that no policy was needed for."""

from pathlib import Path

import numpy as np

from referee.config.schema import DataCollectionConfig, PandaEnvConfig
from referee.envs.panda.env import PandaVectorEnv
from referee.envs.panda.experts import EXPERTS
from referee.learn.environments import make_env
from referee.learn.roll_out import roll_out

NUM_ENVS = 64
TOWARDS, AWAY, PLACE, DRIFT = range(4)


class Stroller:
    """For 2 to 12 steps at a time: with the expert, straight back, to any place of the workspace, or along a line; at a
    speed of its own, with a hand more or less unsteady, and the gripper at times anyhow. So all places are seen, both
    ways."""

    def __init__(self, env: PandaVectorEnv, seed: int, *, guided: int = 0) -> None:
        """guided: most steps that the expert takes first in each episode, so that strolls begin where it touches
        things; how many is drawn for each episode."""
        self._env, self._random, self._guided = env, np.random.default_rng(seed), guided
        count = env.num_envs
        self._until = np.zeros(count, int)
        self._left, self._mode = np.zeros(count, int), np.zeros(count, int)
        self._speed, self._gripper, self._careless = np.ones((count, 1)), np.zeros(count), np.zeros(count, bool)
        self._way, self._place = np.zeros((count, 3)), np.zeros((count, 3))

    def __call__(self) -> np.ndarray:
        """The next actions f32[n,4]."""
        world, random = self._env.world(), self._random
        self._choose(self._left <= 0)
        self._left -= 1
        if self._guided:
            begun = self._env.elapsed == 0
            self._until[begun] = random.integers(0, self._guided + 1, int(begun.sum()))
            led = self._env.elapsed < self._until
            self._mode[led], self._speed[led], self._careless[led], self._left[led] = TOWARDS, 1.0, False, 0
        target, gripper = EXPERTS[self._env.task.name](world)
        step = target - world.tcp
        back = -step / np.maximum(np.linalg.norm(step, axis=1, keepdims=True), 1e-3)
        wanted = np.choose(self._mode[:, None], [step, back, self._place - world.tcp, self._way])
        actions = self._env.hand_actions(wanted, np.where(self._careless, self._gripper, gripper)).astype(np.float64)
        move = actions[:, :3]
        move *= self._speed
        move += random.choice([0.05, 0.2, 0.4], (len(move), 1)) * random.standard_normal(move.shape)
        return np.clip(actions, -1.0, 1.0).astype(np.float32)

    def _choose(self, new: np.ndarray) -> None:
        """What to do next, where the last thing is done."""
        random, count = self._random, int(new.sum())
        self._left[new] = random.integers(2, 13, count)
        self._mode[new] = random.choice((TOWARDS, AWAY, PLACE, DRIFT), count, p=(0.4, 0.2, 0.2, 0.2))
        self._speed[new, 0] = random.choice([0.15, 0.3, 0.6, 1.0], count)
        self._gripper[new] = random.uniform(-1, 1, count)
        self._careless[new] = random.random(count) < 0.3
        self._way[new] = random.standard_normal((count, 3))
        low, high = self._env.task.low, self._env.task.high
        self._place[new] = random.uniform(low, high, (count, 3))


def strolls(folder: Path, task: str, episodes: int, seed: int, *, guided: int = 0) -> Path:
    """Recorded, if they are not there."""
    if folder.exists():
        return folder
    config = PandaEnvConfig(task=task, num_envs=NUM_ENVS, data_collection=DataCollectionConfig(enabled=True))
    env = make_env(config, folder, "stroller")
    world = env.unwrapped
    assert isinstance(world, PandaVectorEnv)
    roll_out(env, Stroller(world, seed, guided=guided), episodes, seed=seed)
    env.close()
    return folder
