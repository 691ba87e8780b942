"""The settings of a fit as one: what `actor`, `actor.optim` and `runner` say of it, and what follows from them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from referee.config.declare import gather, key
from referee.config.reward_training import (
    AugmentConfig,
    EarlyStopConfig,
    FitConfig,
    RewardActorConfig,
    RewardBatchConfig,
    RewardOptimConfig,
)
from referee.errors import RefereeError

EPOCHS, HEAD_EPOCHS = 5, 10
MICRO_BATCH = 32
NO_AUGMENTATION = AugmentConfig(random_shift=0, brightness=0.0, contrast=0.0, saturation=0.0)


@dataclass(frozen=True, kw_only=True)
class FitOptions(RewardOptimConfig, RewardBatchConfig, FitConfig):
    """How a reward model is fitted: the keys of three sections, declared there, and a limit of steps.

    Micro-batches of one process run side by side, on a thread each.
    """

    max_steps: int | None = key(None, "optimiser steps; with max_epochs, whichever ends first", low=1)

    @classmethod
    def of(cls, actor: RewardActorConfig, fit: FitConfig) -> Self:
        """Out of the sections of a configuration."""
        return gather(cls, actor.optim, actor, fit)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lr == 0:
            raise RefereeError("lr is 0, but it must be more than 0")
        if self.positive_weight is not None and self.sampling == "balanced":
            raise RefereeError("positive_weight has no effect with balanced sampling: set sampling=natural")
        self._check_processes()

    def _check_processes(self) -> None:
        if self.training_backend == "simple" and self.num_processes > 1:
            raise RefereeError(
                f"num_processes is {self.num_processes}, but training_backend is simple: set it to ddp or fsdp"
            )
        whole, part = self.global_batch_size, self.micro_batch_size
        if part is None:
            if whole % self.num_processes:
                raise RefereeError(f"global_batch_size {whole} cannot be shared by {self.num_processes} processes")
        elif whole % (part * self.num_processes):
            raise RefereeError(
                f"global_batch_size {whole} is no multiple of micro_batch_size {part}"
                + (f" × {self.num_processes} processes" if self.num_processes > 1 else "")
            )

    @property
    def threads(self) -> int:
        """Of torch, in each process."""
        return self.num_threads or max(1, (os.cpu_count() or 1) // self.num_processes)

    def chunks(self, *, head_only: bool = False) -> int:
        """Micro-batches of an optimiser step, over all processes."""
        if self.micro_batch_size is not None:
            return self.global_batch_size // self.micro_batch_size
        if head_only:  # so little work that sharing it out costs more
            return self.num_processes
        return self.num_processes * -(-self.global_batch_size // (self.num_processes * MICRO_BATCH))

    def total_steps(self, steps_per_epoch: int, *, head_only: bool = False) -> int:
        """Optimiser steps of the whole training."""
        epochs = self.max_epochs
        if epochs is None and self.max_steps is None:
            epochs = HEAD_EPOCHS if head_only else EPOCHS
        limits = [self.max_steps, None if epochs is None else epochs * steps_per_epoch]
        return min(limit for limit in limits if limit is not None)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`; an unknown name is an error."""
        known = {each.name for each in fields(cls)}
        strange = [name for name in values if name not in known]
        if strange:
            raise RefereeError(f"{strange[0]} is no option of training: there are {', '.join(sorted(known))}")
        parts = {
            "augment": AugmentConfig(**values.get("augment", {})),
            "early_stop": EarlyStopConfig(**values.get("early_stop", {})),
        }
        return cls(**{**values, **parts})
