"""`ensemble`: several heads on one encoder; where they disagree, the score is lower.

Frames that nobody has seen are those on which heads disagree, and those that a policy learns to exploit. The logit is
the mean of the heads' minus `std_weight` times their standard deviation, so everything that reads one (calibration,
threshold, report card, reward) is cautious in the same way.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn

from referee.models.contract import ModelError, ModelSpec, RewardModel
from referee.models.registry import register
from referee.models.resnet import ResNet
from referee.models.resnet_reward import encoder_of

MEMBERS, STD_WEIGHT = 5, 1.0
"""Unless `spec.options` say otherwise, as `members` and `std_weight`."""


@register("ensemble")
class EnsembleRewardModel(RewardModel):
    """One ResNet for all cameras, and heads of Linear → ReLU → Dropout → Linear with weights of their own.

    While they learn, each frame of a batch teaches one head: heads see different frames, as in bagging.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        members, self.std_weight = spec.options.get("members", MEMBERS), spec.options.get("std_weight", STD_WEIGHT)
        if type(members) is not int or members < 2:
            raise ModelError(f"members of an ensemble are {members!r}, but 2 or more are needed")
        if type(self.std_weight) not in (int, float) or not 0 <= self.std_weight < float("inf"):
            raise ModelError(f"std_weight of an ensemble is {self.std_weight!r}, but a number from 0 on is needed")
        self.encoder: ResNet = encoder_of(spec)
        width = self.encoder.channels * len(spec.cameras)
        self.heads = nn.ModuleList(_head(spec, width) for _ in range(members))

    def encode_views(self, views: Tensor) -> Tensor:
        """f32[m,3,S,S] → f32[m,C]"""
        return self.encoder(views).mean((2, 3))

    def members(self, features: Tensor) -> Tensor:
        """f32[n,V·C] → f32[n,M]: what each head says."""
        return torch.cat([head(features) for head in self.heads], 1)

    def head(self, features: Tensor) -> Tensor:
        """f32[n,V·C] → f32[n]: mean − std_weight · standard deviation; while learning, what a frame's own head says."""
        logits = self.members(features)
        if self.training:
            return logits.gather(1, _own_head(len(logits), len(self.heads)).to(logits.device))[:, 0]
        deviation, mean = torch.std_mean(logits, dim=1, correction=0)
        return mean - self.std_weight * deviation


def _head(spec: ModelSpec, width: int) -> nn.Module:
    if spec.hidden_dim is None:
        return nn.Linear(width, 1)
    first, last = nn.Linear(width, spec.hidden_dim), nn.Linear(spec.hidden_dim, 1)
    return nn.Sequential(first, nn.ReLU(), nn.Dropout(spec.dropout), last)


@lru_cache(maxsize=64)
def _own_head(count: int, members: int) -> Tensor:
    """int[n,1]: which head a place of a batch teaches; even, and the same in every thread and process.

    A batch may alternate between successes and failures, so the places of a head are no regular pattern.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(count))
    return (order % members)[:, None]
