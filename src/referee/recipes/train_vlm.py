"""Recipe: fine-tune a vision-language model to tell the trend in short windows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from referee import cpu
from referee.config import Loaded
from referee.models.vlm.qwen import check_installed
from referee.runs.folder import locks_folder, name_run, open_run
from referee.runs.interrupt import Interrupt
from referee.runs.logbook import Logbook, check_backends, say_dropped
from referee.training.checkpoint import step_of
from referee.training.vlm.settings import FineTuning
from referee.training.vlm.sft import fine_tune, read_data


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
    settings = FineTuning.of(loaded.config, folder)
    read_data(settings)  # refused before anything is written
    at = step_of(settings.resume)
    open_run(loaded, folder)
    logbook = Logbook(folder, loaded, resumed_at=at)
    try:
        say_dropped(console, logbook, at)
        with Interrupt(console) as interrupt:
            best = fine_tune(settings, console, log=logbook.write, stop=lambda: interrupt.wanted)
        if interrupt.wanted:
            console.print(f"stopped; go on with runner.resume_dir={folder}", soft_wrap=True)
            raise KeyboardInterrupt
    finally:
        logbook.close()
    return TrainedVlm(
        folder=best,
        key="lora_path" if settings.actor.model.is_lora else "model_path",
        windows=next(iter(settings.data.val_data_paths or ()), None),
    )
