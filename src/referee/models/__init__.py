"""Reward models: what sees success in a picture, and the artifact that it is kept in."""

from referee.models.artifact import Artifact, Calibration, Reference
from referee.models.contract import ModelSpec, RewardModel, Verdict
from referee.models.registry import build, register

__all__ = ["Artifact", "Calibration", "ModelSpec", "Reference", "RewardModel", "Verdict", "build", "register"]
