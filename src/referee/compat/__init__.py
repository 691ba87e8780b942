"""Class names of RLinf's reward-model guides, called as there; new code imports from where things live."""

from referee.compat.models import BinaryRewardClassifier, HistoryVLMRewardModel, ResNetRewardModel, VLMRewardModel
from referee.compat.rewards import RewardManager, RewardWorker
from referee.compat.runners import DataCollectorWrapper, EmbodiedRunner, FSDPRewardWorker
from referee.datasets.payload import RewardBinaryDataset, RewardDatasetPayload
from referee.episodes.collector import RewardDataCollector
from referee.workers.teleop import TeleopWorker

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
