"""The settings of one fine-tuning: sections of the configuration, checked before anything is loaded."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from referee.config import Config
from referee.config.runner import TrainVLMRunner
from referee.config.vlm import VLMActorConfig, VLMDataConfig, values
from referee.errors import RefereeError
from referee.models.vlm.prompts import InputBuilder, make_input_builder
from referee.models.vlm.qwen import QwenOptions

EPOCHS = 3
RECIPE = "train_vlm"
SCHEDULE = ("max_epochs", "val_check_interval", "save_interval", "save_steps", "log_interval", "seed")
"""Keys of the runner that are noted beside the weights."""


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """One fine-tuning: who learns and how, from which windows, for how long, and where the results go."""

    actor: VLMActorConfig
    data: VLMDataConfig
    output: Path
    runner: TrainVLMRunner = TrainVLMRunner(recipe=RECIPE)  # noqa: RUF009  # frozen

    def __post_init__(self) -> None:
        actor = self.actor
        if actor.global_batch_size % (actor.micro_batch_size * actor.num_processes):
            raise RefereeError(
                f"global_batch_size {actor.global_batch_size} is not divisible by micro_batch_size "
                f"{actor.micro_batch_size} x num_processes {actor.num_processes}"
            )
        if not actor.model.is_lora and actor.model.precision != "fp32":
            raise RefereeError("all weights learn (is_lora=false), and what learns needs precision=fp32")
        self.builder()

    @classmethod
    def of(cls, config: Config, output: Path) -> FineTuning:
        """That of a configuration with the recipe train_vlm."""
        assert isinstance(config.data, VLMDataConfig) and isinstance(config.actor, VLMActorConfig)
        return cls(actor=config.actor, data=config.data, runner=config.runner, output=output)

    def builder(self) -> InputBuilder:
        """What is asked about a window."""
        return make_input_builder(self.data.input_builder_name, self.builder_params)

    @property
    def builder_params(self) -> dict[str, Any]:
        """Parameters of the input builder."""
        return values(self.data.input_builder_params)

    @property
    def model(self) -> QwenOptions:
        """Which model is loaded, and how it computes."""
        model = self.actor.model
        return QwenOptions(
            model_path=model.model_path, precision=model.precision, attn_implementation=model.attn_implementation,
            use_chat_template=model.use_chat_template,
        )  # fmt: skip

    @property
    def epochs(self) -> int:
        """Passes over the training windows."""
        return self.runner.max_epochs or EPOCHS

    @property
    def threads(self) -> int:
        """Threads of each process."""
        return self.actor.num_threads or max(1, (os.cpu_count() or 1) // self.actor.num_processes)

    @property
    def resume(self) -> Path | None:
        """The run or checkpoint to go on from."""
        return None if self.runner.resume_dir is None else Path(self.runner.resume_dir)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the note beside the weights."""
        schedule = {name: getattr(self.runner, name) for name in SCHEDULE}
        return {
            **asdict(self.actor), **schedule, "max_epochs": self.epochs, "early_stop": asdict(self.runner.early_stop),
            "data": asdict(self.data),
        }  # fmt: skip
