"""The keys of vision-language models: the one that pays, and those of fine-tuning one."""
# ruff: noqa: RUF009 -- key() makes a dataclasses.field; nothing mutable is shared

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from referee.config.declare import REQUIRED, key
from referee.config.history import Buffers

ATTENTION = ("sdpa", "eager", "flash_attention_2")
GENERATES = "readout=generate"


@dataclass(frozen=True, kw_only=True)
class ParamConfig:
    """One parameter of an input builder or reward parser; which there are, the function itself says."""

    value: str | int | float | bool = key(REQUIRED, "its value")


Params = Mapping[str, ParamConfig] | None


def values(params: Params) -> dict[str, Any]:
    """Parameters as a function takes them."""
    return {name: each.value for name, each in (params or {}).items()}


@dataclass(frozen=True, kw_only=True)
class QwenConfig:
    """How a Qwen3-VL computes."""

    precision: str = key("fp32", "of the weights that do not learn", choices=("fp32", "bf16"))
    attn_implementation: str = key("sdpa", "how attention is computed", choices=ATTENTION)


@dataclass(frozen=True, kw_only=True)
class VLMModelConfig(QwenConfig):
    """`vlm` judges the current observation, `history_vlm` windows of the last ones, by asking a Qwen3-VL."""

    model_type: str = key("vlm", "what is judged", choices=("vlm", "history_vlm"))
    model_path: str | None = key(None, "folder with a Qwen3-VL, or its name on the hub")
    lora_path: str | None = key(None, "adapter of a fine-tuning, a folder; null = none")
    input_builder_name: str = key("qwentrend_input_builder", "what is asked about a window")
    input_builder_params: Params = key(None, "parameters of the input builder", short="value")
    reward_parser_name: str = key("qwentrend_reward_parser", "what an answer pays")
    reward_parser_params: Params = key(None, "parameters of the reward parser", short="value")
    readout: str = key(
        "generate", "let it write, or compare the label words' probabilities in one pass", choices=("generate", "score")
    )
    score_pay: str = key(
        "likeliest", "what the likeliest label word pays, or what is expected of all by their probabilities",
        choices=("likeliest", "expected"), only_if="readout=score",
    )  # fmt: skip
    both_ways: bool | None = key(
        None, "ask about every window backwards, too, and take the mean; null = if it was taught so (random_reverse)",
        only_if="readout=score",
    )  # fmt: skip
    infer_micro_batch_size: int = key(64, "windows per forward pass", low=1)
    max_new_tokens: int = key(16, "longest answer", low=1, only_if=GENERATES)
    do_sample: bool = key(False, "draw answers instead of taking the likeliest", only_if=GENERATES)
    temperature: float = key(0.0, "of what is drawn; 0 = as the model says", low=0, only_if="do_sample")
    use_chat_template: bool | None = key(
        None, "ask as a user in the model's own chat format, else in plain text; null = as it was taught, else true"
    )
    history_buffers: Buffers = key(
        None, "the windows that are judged, by any names; null = one of 5 frames at every step",
        only_if="reward.reward_mode=history_buffer",
    )  # fmt: skip
    interval_reward: float = key(
        0.0, "paid for steps that no window judged", only_if="reward.reward_mode=history_buffer"
    )


@dataclass(frozen=True, kw_only=True)
class VLMDataConfig:
    """What a vision-language model is fine-tuned on: windows, as `referee dataset windows` writes them."""

    type: str = key("vlm", "the kind of data", choices=("vlm",))
    dataset_name: str = key(
        "qwentrend_progress_sft", "how windows become questions and answers", choices=("qwentrend_progress_sft",)
    )
    train_data_paths: tuple[str, ...] = key(REQUIRED, "segments.jsonl of the training windows", single=True)
    val_data_paths: tuple[str, ...] | None = key(None, "the same for validation; null = none", single=True)
    video_root: str | None = key(None, "folder that a segment's pkl_path starts from; null = that of dataset_info.json")
    video_nframes: int = key(5, "frames of a window; longer ones are refused", low=1)
    max_val_windows: int = key(0, "of validation, evenly spaced; 0 = all", low=0, only_if="val_data_paths")
    input_builder_name: str = key("qwentrend_input_builder", "what is asked about a window, as online")
    input_builder_params: Params = key(None, "parameters of the input builder", short="value")


@dataclass(frozen=True, kw_only=True)
class VLMTrainedModelConfig(QwenConfig):
    """The model that is fine-tuned."""

    model_type: str = key("qwen3_vl", "which", choices=("qwen3_vl",))
    model_path: str = key(REQUIRED, "folder with a Qwen3-VL, or its name on the hub")
    use_chat_template: bool = key(True, "ask as a user in the model's own chat format, else in plain text")
    is_lora: bool = key(True, "learn a small adapter beside frozen weights; false = all weights")
    lora_rank: int = key(16, "size of the adapter", low=1, only_if="is_lora")
    lora_alpha: float | None = key(None, "its strength; null = twice the rank", low=0, only_if="is_lora")
    lora_dropout: float = key(0.0, "in the adapter", low=0, high=0.9, only_if="is_lora")
    lora_vision: bool = key(True, "an adapter for the part that sees, too", only_if="is_lora")
    gradient_checkpointing: bool = key(False, "less memory for a third more time")


@dataclass(frozen=True, kw_only=True)
class VLMOptimConfig:
    """The optimiser of a fine-tuning (AdamW)."""

    lr: float = key(1e-4, "learning rate", low=0)
    weight_decay: float = key(0.0, "pull towards 0", low=0)
    schedule: str = key("cosine", "after the warm-up", choices=("cosine", "constant"))
    warmup_ratio: float = key(0.05, "share of the steps in which the learning rate rises", low=0, high=0.99)
    clip_grad: float = key(1.0, "largest norm of the gradient; 0 = no limit", low=0)


@dataclass(frozen=True, kw_only=True)
class VLMActorConfig:
    """Who is fine-tuned, and how."""

    model: VLMTrainedModelConfig = key(VLMTrainedModelConfig, "the model")
    optim: VLMOptimConfig = key(VLMOptimConfig, "the optimiser")
    global_batch_size: int = key(16, "windows per step, of all processes", low=1)
    micro_batch_size: int = key(4, "windows per forward pass; gradients are accumulated", low=1)
    eval_batch_size: int = key(16, "windows per forward pass of a validation", low=1)
    random_shift: int = key(
        0, "largest shift of training frames in pixels, all frames of a view alike; 0 = none", low=0
    )
    random_reverse: bool = key(
        False, "show about every other training window backwards, a rise as a fall; it will be asked both ways"
    )
    num_processes: int = key(1, "that train together, each with a copy of the model", low=1)
    num_threads: int = key(0, "threads per process; 0 = the cores, shared out", low=0)
