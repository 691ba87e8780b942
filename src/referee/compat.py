"""Class names of the older documents, in one place; new code imports from where things live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from referee.config import Config
from referee.datasets.payload import RewardBinaryDataset, RewardDatasetPayload
from referee.envs.contract import RefereeVectorEnv
from referee.episodes.collector import RewardDataCollector
from referee.episodes.formats.pickled import FramesPickleWriter
from referee.episodes.recorder import Recorder, Wanted
from referee.errors import RefereeError
from referee.models.binary_classifier import BinaryRewardClassifier
from referee.models.resnet_reward import ResNetRewardModel
from referee.models.vlm.judge import HistoryVLMRewardModel, VLMRewardModel
from referee.rewards.manager import RewardManager
from referee.rewards.text import TextOptions
from referee.workers.reward import RewardWorker as ModelRewardWorker
from referee.workers.text import TextRewardWorker

__all__ = [
    "BinaryRewardClassifier",
    "DataCollectorWrapper",
    "EmbodiedRewardWorker",
    "HistoryVLMRewardModel",
    "ImageRewardWorker",
    "ResNetRewardModel",
    "RewardBinaryDataset",
    "RewardDataCollector",
    "RewardDatasetPayload",
    "RewardManager",
    "RewardWorker",
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
