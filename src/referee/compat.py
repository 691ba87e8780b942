"""Class names of the older documents, in one place; new code imports from where things live."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from referee.config import Config, Loaded, load
from referee.config.imports import import_modules
from referee.datasets.payload import RewardBinaryDataset, RewardDatasetPayload
from referee.envs.contract import RefereeVectorEnv
from referee.episodes.collector import RewardDataCollector
from referee.episodes.formats.pickled import FramesPickleWriter
from referee.episodes.recorder import Recorder, Wanted
from referee.errors import ConfigError, RefereeError
from referee.models.binary_classifier import BinaryRewardClassifier
from referee.models.resnet_reward import ResNetRewardModel
from referee.models.vlm.judge import HistoryVLMRewardModel, VLMRewardModel
from referee.rewards.manager import RewardManager
from referee.rewards.text import TextOptions
from referee.runners.train_policy import check, train_policy
from referee.runners.train_reward import train_placed
from referee.workers.reward import RewardWorker as ModelRewardWorker
from referee.workers.teleop import TeleopWorker
from referee.workers.text import TextRewardWorker

__all__ = [
    "BinaryRewardClassifier",
    "DataCollectorWrapper",
    "EmbodiedRewardWorker",
    "EmbodiedRunner",
    "FSDPRewardWorker",
    "HistoryVLMRewardModel",
    "ImageRewardWorker",
    "ResNetRewardModel",
    "RewardBinaryDataset",
    "RewardDataCollector",
    "RewardDatasetPayload",
    "RewardManager",
    "RewardWorker",
    "TeleopWorker",
    "VLMRewardModel",
]


class RewardWorker(ModelRewardWorker):
    """The reward worker; made from a configuration whose `runner.task_type` is `text`, one that pays by rule."""

    def __new__(cls, first: Any, *rest: Any, **options: Any) -> Any:
        """A worker for a manager and an environment, or for text answers."""
        if isinstance(first, Config):
            if first.runner.task_type != "text":
                raise RefereeError("RewardWorker(config) is for runner.task_type=text: give a manager, env and steps")
            return TextRewardWorker(TextOptions(**vars(first.reward.text)))
        return super().__new__(cls)


EmbodiedRewardWorker = ImageRewardWorker = RewardWorker


class FSDPRewardWorker:
    """Trains a reward model as a preset says, where its cluster section says: `init_worker()`, then `fit()`."""

    def __init__(self, preset: str = "reward_training", overrides: Sequence[str] = ()) -> None:
        self._preset, self._overrides = preset, list(overrides)
        self._loaded: Loaded | None = None

    def init_worker(self) -> None:
        """Read and check the configuration."""
        self._loaded = load(self._preset, self._overrides)
        if self._loaded.config.runner.recipe != "train_reward":
            raise ConfigError(f"{self._preset} trains no reward model: use reward_training")

    def fit(self) -> Path:
        """Train, over all ranks of the placement; the artifact."""
        if self._loaded is None:
            raise RefereeError("FSDPRewardWorker.fit: call init_worker() first")
        return train_placed(self._loaded, Console())


class EmbodiedRunner:
    """Trains a policy as a preset says, where its cluster section says: `init_workers()`, then `run()`."""

    def __init__(self, preset: str, overrides: Sequence[str] = ()) -> None:
        self._preset, self._overrides = preset, list(overrides)
        self._loaded: Loaded | None = None

    def init_workers(self) -> None:
        """Read and check the configuration; the workers are made where the run begins."""
        self._loaded = load(self._preset, self._overrides)
        if self._loaded.config.runner.recipe != "train_policy":
            raise ConfigError(f"{self._preset} trains no policy: use a preset such as maniskill_ppo_mlp")
        import_modules(self._loaded.config.runner.imports)
        check(self._loaded.config)

    def run(self) -> None:
        """Collect, pay, learn, evaluate and save, to the end."""
        if self._loaded is None:
            raise RefereeError("EmbodiedRunner.run: call init_workers() first")
        train_policy(self._loaded)


class DataCollectorWrapper(Recorder):
    """A recorder that writes `success/` and `failure/` with one .pkl per episode, up to a target of each."""

    def __init__(
        self,
        env: RefereeVectorEnv,
        save_dir: Path | str,
        target_success: int | None = None,
        target_failure: int | None = None,
        **options: Any,
    ) -> None:
        wanted = Wanted(target_success=target_success, target_failure=target_failure)
        super().__init__(env, lambda: FramesPickleWriter(save_dir), wanted=wanted, **options)
