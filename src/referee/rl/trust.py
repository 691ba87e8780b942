"""How far one iteration may move a policy: measured on every minibatch, and undone where it went too far."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

STOP, UNDO = 1.5, 6.0
"""Times the target, beyond which an iteration ends, and beyond which its change of the policy is undone."""
SLOWEST, GROWTH = 0.5, 1.25
"""The learning rate's largest cut after an iteration that ended early; its growth after one that hardly moved."""


class TrustRegion:
    """Holds the KL divergence of an iteration near a target, by ending it and by adapting the learning rate.

    Adam moves the mean of a policy by about the same distance whatever its noise is. A cloned policy acts with little
    noise, so the same distance is many of its standard deviations: clipping the ratio comes too late, and a few steps
    ruin it. This class measures the divergence before each step.
    """

    def __init__(self, acting: Iterable[nn.Parameter], target: float) -> None:
        self._acting, self._target = list(acting), target
        self.share = 1.0
        """Of the configured learning rate."""
        self._before: list[Tensor] = []
        self._steps = 0
        self._last = 0.0

    def begin(self) -> None:
        """Remember the policy at the start of an iteration."""
        self._before = [parameter.detach().clone() for parameter in self._acting]
        self._steps, self._last = 0, 0.0

    def allows_step(self, log_ratio: Tensor) -> bool:
        """Whether the policy is still near enough, by the log ratios of a minibatch that comes next."""
        self._last = float((torch.expm1(log_ratio) - log_ratio).mean())
        self._steps += 1
        return self._last <= STOP * self._target  # not a number: no

    def end(self, planned: int) -> bool:
        """Adapt the learning rate after an iteration of so many planned steps; whether its change was undone."""
        done = (self._steps - 1) / planned
        if not self._last <= STOP * self._target:
            self.share *= min(0.9, max(SLOWEST, done))
        elif self._last < self._target / 2:
            self.share = min(1.0, self.share * GROWTH)
        undone = not self._last <= UNDO * self._target  # not a number: yes
        if undone:
            with torch.no_grad():
                for parameter, before in zip(self._acting, self._before, strict=True):
                    parameter.copy_(before)
        return undone
