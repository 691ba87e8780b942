"""Several critics computed as one: their weights are stacked, so that many cost little more than two."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn


class Critics(nn.Module):
    """What an action in a state is worth, said by E nets of one shape, each with weights of its own."""

    def __init__(self, count: int, inputs: int, hidden_dims: tuple[int, ...], *, layer_norm: bool) -> None:
        super().__init__()
        self.count, self.layer_norm = count, layer_norm
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for fan_in, fan_out in pairwise((inputs, *hidden_dims, 1)):
            bound = 1 / math.sqrt(fan_in)  # as torch does for one linear layer
            self.weights.append(nn.Parameter(torch.empty(count, fan_in, fan_out).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.empty(count, 1, fan_out).uniform_(-bound, bound)))

    def forward(self, seen: Tensor, actions: Tensor, members: Tensor | None = None) -> Tensor:
        """f32[E,n]: what each of them (or of `members`, int[m]) says."""
        x = torch.cat([seen, actions], dim=1)
        last = len(self.weights) - 1
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if members is not None:
                weight, bias = weight[members], bias[members]
            wide = x.expand(len(weight), *x.shape) if x.ndim == 2 else x
            x = torch.baddbmm(bias, wide, weight)
            if i < last:
                x = nn.functional.layer_norm(x, x.shape[-1:]) if self.layer_norm else x
                x = torch.relu(x)
        return x[..., 0]
