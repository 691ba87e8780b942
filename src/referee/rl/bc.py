"""Behaviour cloning: a warm start from demonstrations, because a sparse reward needs a first success."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from referee.config.learning import BCConfig
from referee.errors import RefereeError
from referee.rl.policy import Tensors
from referee.rl.squashed import AnyPolicy


def clone(
    policy: AnyPolicy,
    observations: Tensors,
    actions: Tensor,
    config: BCConfig,
    generator: torch.Generator,
) -> list[float]:
    """Fit the policy's mean to demonstrated actions; returns the loss (mean squared error) of each epoch.

    observations: the parts that the policy looks at, [n, …]; actions: f32[n,a]. The critic, the spread and the
    normaliser are left alone.
    """
    count = len(actions)
    if count == 0:
        raise RefereeError("behaviour cloning got no demonstrations: set algorithm.bc_warmup.episodes above 0")
    learned = [*policy.actor.parameters(), *(policy.encoder.parameters() if policy.encoder else ())]
    optimizer = torch.optim.Adam(learned, lr=config.lr)
    losses = []
    for _ in range(config.epochs):
        order = torch.randperm(count, generator=generator)
        total = 0.0
        for start in range(0, count, config.batch_size):
            index = order[start : start + config.batch_size]
            seen = {name: observations[name][index] for name in policy.inputs}
            loss = ((policy.mean(seen) - actions[index]) ** 2).mean()
            optimizer.zero_grad(set_to_none=False)  # gradients may be views of a learner's own vector
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += float(loss.detach()) * len(index)
        if not math.isfinite(total):
            raise RefereeError("behaviour cloning diverged: lower algorithm.bc_warmup.lr")
        losses.append(total / count)
    return losses
