"""`binary_classifier`: SERL's way, a ResNet10 that is usually frozen, and a learned weighting of its feature map."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from referee.models.contract import ModelSpec, RewardModel
from referee.models.registry import register
from referee.models.resnet import ResNet, map_size
from referee.models.resnet_reward import encoder_of


class SpatialLearnedEmbeddings(nn.Module):
    """Each channel of a feature map weighed over its places, in `blocks` learned ways."""

    def __init__(self, height: int, width: int, channels: int, blocks: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(height, width, channels, blocks))
        nn.init.trunc_normal_(self.kernel, std=(height * width) ** -0.5)

    def forward(self, features: Tensor) -> Tensor:
        """f32[n,C,h,w] → f32[n,C·blocks]"""
        # One small matrix product per channel: [C,n,hw] × [C,hw,blocks].
        flat = features.flatten(2).transpose(0, 1)
        kernel = self.kernel.flatten(0, 1).transpose(0, 1)
        return torch.bmm(flat, kernel).transpose(0, 1).flatten(1)


@register("binary_classifier")
class BinaryRewardClassifier(RewardModel):
    """One ResNet for all cameras, a weighting of its map for each, then Linear → LayerNorm → Tanh → Linear."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.encoder: ResNet = encoder_of(spec)
        self.side = map_size(spec.image_size) if spec.pooling == "spatial" else 1
        """Of the feature map that comes out of the encoder, or of its average."""
        channels, blocks = self.encoder.channels, spec.num_spatial_blocks
        self.pooling = nn.ModuleList(
            SpatialLearnedEmbeddings(self.side, self.side, channels, blocks) for _ in spec.cameras
        )
        hidden = spec.hidden_dim or 256
        self.dropout = nn.Dropout(spec.dropout)
        self.classifier = nn.Sequential(
            nn.Linear(channels * blocks * len(spec.cameras), hidden),
            nn.LayerNorm(hidden),
            nn.Tanh(),
            nn.Linear(hidden, 1),
        )

    def encode_views(self, views: Tensor) -> Tensor:
        """f32[m,3,S,S] → f32[m,C,h,w]"""
        found = self.encoder(views)
        return found if self.spec.pooling == "spatial" else found.mean((2, 3), keepdim=True)

    def head(self, features: Tensor) -> Tensor:
        """f32[n,V·C·h·w] → f32[n]"""
        maps = self._maps(features)
        pooled = [pool(maps[:, view]) for view, pool in enumerate(self.pooling)]
        return self.classifier(self.dropout(torch.cat(pooled, 1)))[:, 0]

    def embed(self, features: Tensor) -> Tensor:
        """f32[n,V·C·h·w] → f32[n,V·C]: the averages over the map."""
        return self._maps(features).mean((3, 4)).flatten(1)

    def _maps(self, features: Tensor) -> Tensor:
        return features.reshape(len(features), len(self.spec.cameras), self.encoder.channels, self.side, self.side)
