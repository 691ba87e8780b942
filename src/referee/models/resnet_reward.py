"""`resnet`: a ResNet, its feature map averaged, and a small head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from referee.models.contract import ModelSpec, RewardModel
from referee.models.registry import register
from referee.models.resnet import ResNet


@register("resnet")
class ResNetRewardModel(RewardModel):
    """One ResNet for all cameras; their averaged features side by side go into Linear → ReLU → Dropout → Linear."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.encoder: ResNet = encoder_of(spec)
        width = self.encoder.channels * len(spec.cameras)
        if spec.hidden_dim is None:
            self.classifier: nn.Module = nn.Linear(width, 1)
        else:
            first, last = nn.Linear(width, spec.hidden_dim), nn.Linear(spec.hidden_dim, 1)
            self.classifier = nn.Sequential(first, nn.ReLU(), nn.Dropout(spec.dropout), last)

    def encode_views(self, views: Tensor) -> Tensor:
        """f32[m,3,S,S] → f32[m,C]"""
        return self.encoder(views).mean((2, 3))

    def head(self, features: Tensor) -> Tensor:
        """f32[n,V·C] → f32[n]"""
        return self.classifier(features)[:, 0]


def encoder_of(spec: ModelSpec) -> ResNet:
    """The ResNet that a spec names, in the memory format that convolutions on a CPU like."""
    net = ResNet(spec.arch, width=spec.width, norm=spec.norm, padding=spec.padding)  # type: ignore[arg-type]
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
