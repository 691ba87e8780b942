"""What Python blocks of the docs take as given: an environment of yours, an id, some images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from tests.synthetic import square_films

from referee.config import PandaEnvConfig
from referee.envs import make_vec
from referee.envs.single import SingleArm
from referee.episodes import EpisodeStore
from referee.models import Artifact

if TYPE_CHECKING:
    from tests.documented.stage import Stage

YOURS = "YourEnv-v0"


class Worker:
    """Somebody who acts, as the page about clusters imagines."""

    def __init__(self, rank: Any, seed: int = 0) -> None:
        self.seed = seed

    def collect(self, weights: np.ndarray) -> np.ndarray:
        """Frames."""
        return np.full((2, 8, 8, 3), weights.sum(), np.uint8)

    def save_film(self) -> bool:
        """Pretend to."""
        return True


class Judge:
    """Somebody who looks at frames."""

    def __init__(self, rank: Any, artifact: str) -> None:
        self.artifact = artifact

    def score(self, frames: np.ndarray) -> np.ndarray:
        """A number for each."""
        return frames.mean((1, 2, 3))


def after(stage: Stage) -> None:
    """What a block only defines is also used once."""
    if stage.page == "docs/serving.md" and "score" in stage.names:
        said = stage.names["score"](np.zeros((2, 64, 64, 3), np.uint8))
        assert len(said["probability"]) == 2 and "gate" in said, said


def made(stage: Stage) -> dict[str, Any]:
    """Names for what the page's own commands have written by now."""
    token = stage.folder / "token"
    return {"token": token.read_text().strip()} if token.exists() else {}


def given(stage: Stage) -> dict[str, Any]:
    """Names for the blocks of a page."""
    if YOURS not in gym.registry:
        gym.register(id=YOURS, entry_point=SingleArm, kwargs={"task": "PickCube"})
    page = stage.page
    if page in ("README.md", "docs/library.md"):
        seen, new = square_films(24, seed=0), square_films(12, seed=1)
        names = ("frames", "labels", "episode_of_frame")
        return dict(zip((*names, *(f"new_{name}" for name in names)), (*seen, *new), strict=True))
    if page == "docs/data.md":
        ids = list(EpisodeStore("data").rows)
        return {"your_gymnasium_env": gym.make(YOURS, render_mode="rgb_array"), "episode_id": ids[0]}
    if page == "docs/reward_models.md":
        env = make_vec(PandaEnvConfig(task="PickCube", num_envs=2, num_threads=1))
        env.reset(seed=0)
        return {"env": env}
    if page == "docs/rewards.md":
        return {"images": np.zeros((2, 64, 64, 3), np.uint8), "env_rewards": np.zeros(2, np.float32)}
    if page == "docs/serving.md":
        return {"env": gym.make(YOURS, render_mode="rgb_array"), "artifact": Artifact.load(stage.world.artifact)}
    if page == "docs/cluster.md":
        return {"make_env_worker": Worker, "Judge": Judge, "policy_weights": np.ones(3), "frame": np.zeros(3)}
    return {}
