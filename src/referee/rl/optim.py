"""What learners share: many weights as one vector, its learning rate, and a step that is refused where it diverges."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from referee.config.learning import OptimConfig
from referee.errors import RefereeError


class DivergedError(RefereeError):
    """A loss or gradient is no number any more; the policy was left as it was before."""


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


def set_rate(
    optimizers: Iterable[torch.optim.Optimizer], config: OptimConfig, progress: float, *, share: float = 1.0
) -> float:
    """The learning rate after a share of the run, in 0..1, times `share`; returns it."""
    rate = share * config.lr * (1.0 - progress if config.schedule == "linear" else 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
    return rate


def step(optimizer: torch.optim.Optimizer, weights: nn.Parameter, config: OptimConfig, *, loss: str) -> None:
    """One step along the gradient of `weights`, cut to `clip_grad`. loss: its name, if it is no number."""
    assert weights.grad is not None
    norm = float(torch.linalg.vector_norm(weights.grad))
    if not math.isfinite(norm):
        raise DivergedError(
            f"the gradient of the {loss} loss is not finite: lower actor.optim.lr, or check rewards and observations "
            "for NaN; the last good checkpoint is kept"
        )
    if norm > config.clip_grad:
        weights.grad.mul_(config.clip_grad / norm)
    optimizer.step()
