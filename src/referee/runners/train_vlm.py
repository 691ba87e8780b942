"""Recipe: fine-tune a vision-language model to tell the trend in short windows."""

from __future__ import annotations

from rich.console import Console

from referee import cpu
from referee.config import Loaded
from referee.models.vlm.qwen import check_installed
from referee.runners.interrupt import Interrupt
from referee.runners.logbook import Logbook, check_backends, say_dropped
from referee.runners.next_step import next_line
from referee.runners.rundir import locks_folder, name_run, open_run
from referee.training.checkpoint import step_of
from referee.training.vlm.settings import FineTuning
from referee.training.vlm.sft import fine_tune, read_data


@locks_folder
def train_vlm(loaded: Loaded) -> None:
    """Fine-tune, and say what to do next."""
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
    key = "lora_path" if settings.actor.model.is_lora else "model_path"
    console.print(f"use it as reward.model.{key}={best}", highlight=False, soft_wrap=True)
    for windows in (settings.data.val_data_paths or ())[:1]:
        console.print(next_line("audit", best, windows), highlight=False, markup=False, soft_wrap=True)
