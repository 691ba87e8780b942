"""Every knob of training a reward model, checked before anything is allocated."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from referee.errors import RefereeError

OPTIMIZERS = ("adamw", "adam")
SCHEDULES = ("cosine", "constant")
SAMPLINGS = ("balanced", "natural")
BACKENDS = ("simple", "ddp", "fsdp")
EPOCHS, HEAD_EPOCHS = 5, 10
MICRO_BATCH = 32
METRICS = ("val_auroc", "val_loss", "val_accuracy", "train_accuracy")


@dataclass(frozen=True, kw_only=True)
class AugmentOptions:
    """How far training images are changed; validation and use see images as they are."""

    random_shift: int = 3
    """Largest shift in pixels, in both directions, each view for itself; the rim is repeated. 0 = none."""
    brightness: float = 0.1
    """Largest change of a factor: 0.2 draws from 0.8 to 1.2. 0 = none; as for the two below."""
    contrast: float = 0.1
    saturation: float = 0.0

    def __post_init__(self) -> None:
        if self.random_shift < 0:
            raise RefereeError(f"random_shift is {self.random_shift}, but it is a number of pixels: 0 turns it off")
        for name in ("brightness", "contrast", "saturation"):
            if not 0 <= getattr(self, name) <= 1:
                raise RefereeError(f"{name} is {getattr(self, name)}, but it must be in 0..1: 0 turns it off")

    @property
    def colour(self) -> bool:
        """Whether colours are changed."""
        return bool(self.brightness or self.contrast or self.saturation)

    @property
    def enabled(self) -> bool:
        """Whether images are changed at all."""
        return bool(self.random_shift) or self.colour

    def __bool__(self) -> bool:
        return self.enabled


NO_AUGMENTATION = AugmentOptions(random_shift=0, brightness=0.0, contrast=0.0, saturation=0.0)


@dataclass(frozen=True, kw_only=True)
class EarlyStop:
    """When to give up before the end."""

    patience: int = 0
    """Validations in a row without a better one; 0 = never stop early."""
    min_delta: float = 0.0
    """What counts as better."""

    def __post_init__(self) -> None:
        if self.patience < 0 or self.min_delta < 0:
            raise RefereeError("early_stop.patience and early_stop.min_delta cannot be negative")


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """How a reward model is fitted. The defaults are for some thousand frames on a CPU."""

    optimizer: str = "adamw"
    lr: float = 3e-3
    weight_decay: float = 1e-2
    schedule: str = "cosine"
    """After the warm-up: down to 0 along half a cosine, or `constant`."""
    warmup_ratio: float = 0.1
    """Share of all steps in which the learning rate rises from 0."""
    clip_grad: float = 1.0
    """Largest norm of the gradient; 0 = no limit."""
    global_batch_size: int = 64
    """Frames per optimiser step, over all processes."""
    micro_batch_size: int | None = None
    """Frames per forward pass; their gradients are accumulated. None = 32, or all of a process's share.

    Micro-batches of one process run side by side, on a thread each.
    """
    max_epochs: int | None = None
    """None = as many as max_steps takes; without that 5, or 10 where only a head learns, on cached features."""
    max_steps: int | None = None
    """Optimiser steps; with max_epochs, whichever ends first."""
    sampling: str = "balanced"
    """`balanced`: as many successes as failures in each batch; `natural`: every frame once per epoch."""
    positive_weight: float | None = None
    """Weight of a success in the loss, for natural sampling; None = 1, 0 = failures / successes."""
    augment: AugmentOptions = field(default_factory=AugmentOptions)
    early_stop: EarlyStop = field(default_factory=EarlyStop)
    val_check_interval: int = 1
    """Epochs between validations; the last epoch is always validated."""
    save_interval: int = 0
    """Epochs between checkpoints step_<n>; 0 = only the last."""
    save_steps: int = 0
    """Steps between them, instead of epochs; 0 = by epochs."""
    log_interval: int = 10
    """Steps between reports of progress."""
    best_metric: str = "val_loss"
    seed: int = 42
    training_backend: str = "simple"
    num_processes: int = 1
    num_threads: int = 0
    """Threads of torch per process; 0 = the cores, shared out."""
    encoder_warmup_steps: int | None = None
    """Steps in which a frozen encoder still learns, on the task's own frames, before it is frozen.

    None = some where it has no pretrained weights, else 0.
    """
    feature_copies: int = 0
    """Augmented copies of each frame among the cached features of a frozen encoder."""

    def __post_init__(self) -> None:
        _one_of("optimizer", self.optimizer, OPTIMIZERS)
        _one_of("schedule", self.schedule, SCHEDULES)
        _one_of("sampling", self.sampling, SAMPLINGS)
        _one_of("best_metric", self.best_metric, METRICS)
        _one_of("training_backend", self.training_backend, BACKENDS)
        _at_least("lr", self.lr, 0.0, more=True)
        for name in ("weight_decay", "clip_grad"):
            _at_least(name, getattr(self, name), 0.0)
        if not 0 <= self.warmup_ratio < 1:
            raise RefereeError(f"warmup_ratio is {self.warmup_ratio}, but it is a share of the steps: below 1")
        if self.positive_weight is not None:
            _at_least("positive_weight", self.positive_weight, 0.0)
            if self.sampling == "balanced":
                raise RefereeError("positive_weight has no effect with balanced sampling: set sampling=natural")
        for name in ("global_batch_size", "val_check_interval", "log_interval", "num_processes"):
            _at_least(name, getattr(self, name), 1)
        for name in ("save_interval", "save_steps", "num_threads", "feature_copies", "seed"):
            _at_least(name, getattr(self, name), 0)
        if self.encoder_warmup_steps is not None:
            _at_least("encoder_warmup_steps", self.encoder_warmup_steps, 0)
        for name in ("max_epochs", "max_steps", "micro_batch_size"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
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
    def from_json(cls, values: Mapping[str, Any]) -> FitOptions:
        """The inverse of `to_json`; an unknown name is an error."""
        known = {each.name for each in fields(cls)}
        strange = [name for name in values if name not in known]
        if strange:
            raise RefereeError(f"{strange[0]} is no option of training: there are {', '.join(sorted(known))}")
        parts = {
            "augment": AugmentOptions(**values.get("augment", {})),
            "early_stop": EarlyStop(**values.get("early_stop", {})),
        }
        return cls(**{**values, **parts})


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise RefereeError(f"{name} is {value!r}, but it must be one of {', '.join(choices)}")


def _at_least(name: str, value: float, low: float, *, more: bool = False) -> None:
    if not math.isfinite(value) or value < low or (more and value == low):
        raise RefereeError(f"{name} is {value}, but it must be {'more than' if more else 'at least'} {low:g}")
