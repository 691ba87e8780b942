"""Recipe: fine-tune a vision-language model to tell the trend in short windows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from referee import cpu
from referee.config import Config, Loaded
from referee.config.vlm import VLMActorConfig, VLMDataConfig, values
from referee.models.vlm.qwen import QwenOptions, check_installed
from referee.runners.interrupt import Interrupt
from referee.runners.logbook import Logbook, check_backends, say_dropped
from referee.runners.rundir import locks_folder, name_run, open_run
from referee.training.checkpoint import step_of
from referee.training.options import EarlyStop
from referee.training.vlm.options import LoraOptions, SftOptions
from referee.training.vlm.sft import fine_tune, read_data

EPOCHS = 3


@dataclass(frozen=True, kw_only=True)
class TrainedVlm:
    """A fine-tuned model."""

    folder: Path
    """The best weights: a whole model, or an adapter."""
    key: str
    """Of `reward.model`: the one that takes the folder."""
    windows: str | None
    """Validation windows, to audit it on."""


@locks_folder
def train_vlm(loaded: Loaded) -> TrainedVlm:
    """Fine-tune."""
    check_backends(loaded)
    check_installed()
    cpu.cap_if_needed()
    console, folder = Console(), name_run(loaded)
    options = options_of(loaded.config, folder)
    read_data(options)  # refused before anything is written
    at = step_of(options.resume)
    open_run(loaded, folder)
    logbook = Logbook(folder, loaded, resumed_at=at)
    try:
        say_dropped(console, logbook, at)
        with Interrupt(console) as interrupt:
            best = fine_tune(options, console, log=logbook.write, stop=lambda: interrupt.wanted)
        if interrupt.wanted:
            console.print(f"stopped; go on with runner.resume_dir={folder}", soft_wrap=True)
            raise KeyboardInterrupt
    finally:
        logbook.close()
    assert isinstance(loaded.config.data, VLMDataConfig)
    return TrainedVlm(
        folder=best,
        key="model_path" if options.lora is None else "lora_path",
        windows=next(iter(loaded.config.data.val_data_paths or ()), None),
    )


def options_of(config: Config, folder: Path) -> SftOptions:
    """The options of a fine-tuning, from the keys of a configuration."""
    runner, data, actor = config.runner, config.data, config.actor
    assert isinstance(data, VLMDataConfig) and isinstance(actor, VLMActorConfig)  # the recipe chooses them
    model = actor.model
    lora = LoraOptions(
        rank=model.lora_rank, alpha=model.lora_alpha, dropout=model.lora_dropout, vision=model.lora_vision
    )
    return SftOptions(
        model=QwenOptions(
            model_path=model.model_path,
            precision=model.precision,
            attn_implementation=model.attn_implementation,
            use_chat_template=model.use_chat_template,
        ),
        output=folder,
        train=tuple(map(Path, data.train_data_paths)),
        val=tuple(map(Path, data.val_data_paths or ())),
        root=None if data.video_root is None else Path(data.video_root),
        frames=data.video_nframes,
        builder_name=data.input_builder_name,
        builder_params=values(data.input_builder_params),
        max_val_windows=data.max_val_windows,
        lora=lora if model.is_lora else None,
        gradient_checkpointing=model.gradient_checkpointing,
        **vars(actor.optim),
        global_batch_size=actor.global_batch_size,
        micro_batch_size=actor.micro_batch_size,
        eval_batch_size=actor.eval_batch_size,
        random_shift=actor.random_shift,
        random_reverse=actor.random_reverse,
        max_epochs=runner.max_epochs or EPOCHS,
        val_check_interval=runner.val_check_interval,
        save_interval=runner.save_interval,
        save_steps=runner.save_steps,
        log_interval=runner.log_interval,
        early_stop=EarlyStop(**vars(runner.early_stop)),
        seed=runner.seed,
        num_processes=actor.num_processes,
        num_threads=actor.num_threads,
        resume=None if runner.resume_dir is None else Path(runner.resume_dir),
        imports=runner.imports,
    )
