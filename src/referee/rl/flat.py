"""Many weights as one vector: one optimiser step instead of many."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


def flatten(parameters: Iterable[nn.Parameter]) -> nn.Parameter:
    """A vector that shares memory with all these parameters, and its gradient with theirs."""
    parameters = list(parameters)
    flat = nn.Parameter(torch.cat([each.detach().reshape(-1) for each in parameters]))
    flat.grad = torch.zeros_like(flat)
    start = 0
    for each in parameters:
        stop = start + each.numel()
        each.data = flat.data[start:stop].view(each.shape)
        each.grad = flat.grad[start:stop].view(each.shape)
        start = stop
    return flat
