"""Rewards from scores: which reward each state has, and how far that is from the truth."""

from referee.rewards.alarm import Alarm
from referee.rewards.manager import RewardManager
from referee.rewards.rules import Gate, RewardOptions, combine, ends_episode, model_rewards
from referee.rewards.score_rollout import (
    FinalPictures,
    RolloutFrames,
    Scores,
    pay_steps,
    score_finals,
    score_steps,
)
from referee.rewards.truth import TruthBeside, paired_difference

__all__ = [
    "Alarm",
    "FinalPictures",
    "Gate",
    "RewardManager",
    "RewardOptions",
    "RolloutFrames",
    "Scores",
    "TruthBeside",
    "combine",
    "ends_episode",
    "model_rewards",
    "paired_difference",
    "pay_steps",
    "score_finals",
    "score_steps",
]
