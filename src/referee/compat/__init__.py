"""Class names of RLinf's reward-model guides, called as there: the door to `referee.legacy`."""

from referee.collect.teleop_worker import TeleopWorker
from referee.datasets.payload import RewardBinaryDataset, RewardDatasetPayload
from referee.episodes.collector import RewardDataCollector
from referee.legacy.models import BinaryRewardClassifier, HistoryVLMRewardModel, ResNetRewardModel, VLMRewardModel
from referee.legacy.rewards import RewardManager, RewardWorker
from referee.legacy.runners import DataCollectorWrapper, EmbodiedRunner, FSDPRewardWorker

EmbodiedRewardWorker = ImageRewardWorker = RewardWorker

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
