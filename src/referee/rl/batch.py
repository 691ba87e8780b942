"""What a learner reads: a rollout made ready, and what a loss is made of."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from referee.rl.policy import Tensors


@dataclass(frozen=True)
class Batch:
    """A rollout made ready for learning: T·N samples."""

    observations: Tensors
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor

    def __len__(self) -> int:
        return len(self.actions)

    def take(self, index: Tensor) -> Batch:
        """The samples `index`, in that order."""
        return Batch(
            {name: value[index] for name, value in self.observations.items()},
            *(getattr(self, name)[index] for name in ("actions", "log_probs", "values", "advantages", "returns")),
        )

    def slice(self, start: int, stop: int) -> Batch:
        """The samples from `start` to `stop`, as views."""
        return Batch(
            {name: value[start:stop] for name, value in self.observations.items()},
            *(getattr(self, name)[start:stop] for name in ("actions", "log_probs", "values", "advantages", "returns")),
        )


@dataclass(frozen=True)
class Parts:
    """What a loss is made of."""

    policy_loss: Tensor
    log_ratio: Tensor
    value_loss: Tensor
