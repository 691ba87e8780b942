"""Every knob of a fine-tuning, checked before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from referee.config.reward_training import EarlyStopConfig
from referee.errors import RefereeError
from referee.models.vlm.prompts import QWENTREND, InputBuilder, make_input_builder
from referee.models.vlm.qwen import QwenOptions


@dataclass(frozen=True, kw_only=True)
class LoraOptions:
    """A small adapter that learns beside frozen weights."""

    rank: int = 16
    alpha: float | None = None
    """Its strength; None = twice the rank."""
    dropout: float = 0.0
    vision: bool = True
    """Whether the part that sees has one, too."""


@dataclass(frozen=True, kw_only=True)
class SftOptions:
    """A whole fine-tuning."""

    model: QwenOptions
    output: Path
    train: tuple[Path, ...]
    val: tuple[Path, ...] = ()
    root: Path | None = None
    frames: int = 5
    builder_name: str = QWENTREND
    builder_params: Mapping[str, Any] = field(default_factory=dict)
    lora: LoraOptions | None = field(default_factory=LoraOptions)
    """None trains all weights."""
    gradient_checkpointing: bool = False
    lr: float = 1e-4
    weight_decay: float = 0.0
    schedule: str = "cosine"
    warmup_ratio: float = 0.05
    clip_grad: float = 1.0
    global_batch_size: int = 16
    micro_batch_size: int = 4
    eval_batch_size: int = 16
    max_val_windows: int = 0
    random_shift: int = 0
    """Largest shift in pixels, the same for all frames of a view."""
    random_reverse: bool = False
    """Show every other training window backwards, under the label that it has then."""
    max_epochs: int = 3
    val_check_interval: int = 1
    save_interval: int = 0
    save_steps: int = 0
    log_interval: int = 10
    early_stop: EarlyStopConfig = field(default_factory=EarlyStopConfig)
    seed: int = 0
    num_processes: int = 1
    num_threads: int = 0
    resume: Path | None = None
    imports: tuple[str, ...] = ()
    """Modules that each process imports first."""

    def __post_init__(self) -> None:
        if self.global_batch_size % (self.micro_batch_size * self.num_processes):
            raise RefereeError(
                f"global_batch_size {self.global_batch_size} is not divisible by micro_batch_size "
                f"{self.micro_batch_size} x num_processes {self.num_processes}"
            )
        if self.lora is None and self.model.precision != "fp32":
            raise RefereeError("all weights learn (is_lora=false), and what learns needs precision=fp32")
        self.builder()

    def builder(self) -> InputBuilder:
        """What is asked about a window."""
        return make_input_builder(self.builder_name, self.builder_params)

    @property
    def threads(self) -> int:
        """Threads of each process."""
        return self.num_threads or max(1, (os.cpu_count() or 1) // self.num_processes)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the note beside the weights."""
        found = asdict(self)
        found["builder_params"] = dict(self.builder_params)
        return {name: _plain(value) for name, value in found.items() if name not in ("output", "resume")}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value
