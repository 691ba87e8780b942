"""Rewards from verdicts: who is paid what for which state, and how far that is from the truth."""

from referee.rewards.alarm import Alarm
from referee.rewards.manager import RewardManager
from referee.rewards.rules import Gate, RewardOptions, combine, ends_episode, model_rewards
from referee.rewards.score_rollout import FinalPictures, Scored, pay_steps, score_finals, score_steps
from referee.rewards.truth import TruthBeside, paired_difference

__all__ = [
    "Alarm",
    "FinalPictures",
    "Gate",
    "RewardManager",
    "RewardOptions",
    "Scored",
    "TruthBeside",
    "combine",
    "ends_episode",
    "model_rewards",
    "paired_difference",
    "pay_steps",
    "score_finals",
    "score_steps",
]
