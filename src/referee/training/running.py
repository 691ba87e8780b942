"""What normalisation layers note while they learn, kept the same however a step is shared out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from referee.training.parallel import Group


class Running(NamedTuple):
    """What normalisation layers note of the batches they see, those of a frozen encoder excepted."""

    statistics: list[Tensor]
    counters: list[Tensor]
    """How many batches they have seen; a step is one, however many micro-batches it has."""

    @classmethod
    def of(cls, net: nn.Module) -> Running:
        """Those of a network in training mode."""
        found = [each for module in net.modules() if module.training for each in module.buffers(recurse=False)]
        return cls([each for each in found if each.is_floating_point()],
                   [each for each in found if not each.is_floating_point()])  # fmt: skip


def settle(statistics: list[Tensor], found: list[list[Tensor]], chunks: int, group: Group) -> None:
    """Running statistics move once per step, to the mean over its micro-batches.

    So they are the same whether one process has all the micro-batches or several share them.
    """
    sums = [torch.stack(each).sum(0) for each in zip(*found, strict=True)]
    group.sum_(sums)
    for buffer, sum in zip(statistics, sums, strict=True):
        buffer.copy_(sum / chunks)
