"""Class names of the older documents, in one place; new code imports from where things live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from referee.datasets.payload import RewardBinaryDataset, RewardDatasetPayload
from referee.envs.contract import RefereeVectorEnv
from referee.episodes.collector import RewardDataCollector
from referee.episodes.formats.pickled import FramesPickleWriter
from referee.episodes.recorder import Recorder, Wanted
from referee.models.binary_classifier import BinaryRewardClassifier
from referee.models.resnet_reward import ResNetRewardModel
from referee.rewards.manager import RewardManager
from referee.workers.reward import RewardWorker
from referee.workers.teleop import TeleopWorker

__all__ = [
    "BinaryRewardClassifier",
    "DataCollectorWrapper",
    "EmbodiedRewardWorker",
    "ImageRewardWorker",
    "ResNetRewardModel",
    "RewardBinaryDataset",
    "RewardDataCollector",
    "RewardDatasetPayload",
    "RewardManager",
    "RewardWorker",
    "TeleopWorker",
]

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
