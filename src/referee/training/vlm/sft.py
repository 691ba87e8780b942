"""The recipe of a fine-tuning: windows, a Qwen3-VL, the loop, and weights that can be used as they are."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from referee import __version__, checksums, cpu, files
from referee.config.imports import import_modules
from referee.datasets.fingerprint import Fingerprint
from referee.models.vlm import qwen
from referee.models.vlm.qwen import Qwen
from referee.training import checkpoint, parallel
from referee.training.bar import Bar, Log
from referee.training.parallel import Group
from referee.training.recipe import best_model
from referee.training.switches import threads
from referee.training.vlm.report import SftReport, SftResult
from referee.training.vlm.segments import Segment, check_split, counts, digest, pictures_of, read_segments
from referee.training.vlm.settings import FineTuning

Say = Callable[[str], None]


def fine_tune(
    settings: FineTuning,
    console: Console,
    *,
    log: Log | None = None,
    stop: Callable[[], bool] | None = None,
) -> Path:
    """Fine-tune, and return the folder of the best weights: an adapter, or a whole model.

    stop: asked after every step (now and then, in several processes); at its yes the training is saved and ends.
    """

    def say(line: str) -> None:
        warned = line.startswith("warning:")
        console.print(line, style="bold yellow" if warned else None, highlight=False, markup=False, soft_wrap=True)

    began = time.time()
    train, val = read_data(settings)
    say(f"training windows: {_listed(train)}; validation: {_listed(val) if val else 'none'}")
    if not val:
        say("warning: there is no validation, so the best model is that of the lowest training loss")
    with Bar(console, log, describe=str, numbers=SftReport.numbers) as bar:
        if settings.actor.num_processes == 1:
            result = _work(Group(), bar.show, settings, began, say=say, stop=stop)
        else:
            result = _in_processes(settings, bar.show, stop, began)
    seconds = max((each.seconds for each in (*result.history, result.best)), default=0.0)
    say(f"{result.reason} at step {result.step} after {seconds:.0f} s; best at step {result.best.step}:")
    say(f"  {result.best}")
    for line in () if result.best.val is None else result.best.val.table():
        say(f"    {line}")
    return best_model(settings.output)


def read_data(settings: FineTuning) -> tuple[list[Segment], list[Segment]]:
    """The windows of both sides."""
    data = settings.data
    root, frames = data.video_root, data.video_nframes
    train = read_segments(data.train_data_paths, root, frames=frames)
    val = read_segments(data.val_data_paths, root, frames=frames) if data.val_data_paths else []
    check_split(train, val)
    return train, val


def _listed(segments: list[Segment]) -> str:
    return ", ".join(f"{count} {label}" for label, count in counts(segments).items())


def _in_processes(
    settings: FineTuning, show: Callable[[SftReport], None], stop: Callable[[], bool] | None, began: float
) -> SftResult:
    results: list[SftResult] = []

    def hear(what: SftReport | SftResult) -> None:
        if isinstance(what, SftResult):
            results.append(what)
        else:
            show(what)

    count = settings.actor.num_processes
    parallel.launch(_child, (settings, began), backend="ddp", processes=count, hear=hear, stop=stop)
    return results[0]


def _child(
    group: Group, tell: Callable[[Any], None], stop: Callable[[], bool], settings: FineTuning, began: float
) -> None:
    cpu.cap_if_needed()
    import_modules(settings.runner.imports)
    os.environ["OMP_NUM_THREADS"] = str(settings.threads)  # else accelerate chooses
    tell(_work(group, tell, settings, began, stop=stop))


def _work(
    group: Group,
    show: Callable[[SftReport], None],
    settings: FineTuning,
    began: float,
    *,
    say: Say | None = None,
    stop: Callable[[], bool] | None = None,
) -> SftResult:
    """One process: it loads the model and the windows itself."""
    train, val = read_data(settings)
    resume = None if settings.resume is None else checkpoint.load(checkpoint.find(settings.resume))
    with threads(settings.threads):
        torch.manual_seed(settings.runner.seed)
        model = qwen.load(settings.model)
        note = _note(model, train, val, settings)
        prepare(model, settings)
        if say is not None:
            learning = sum(each.numel() for each in model.net.parameters() if each.requires_grad)
            total = sum(each.numel() for each in model.net.parameters())
            kind = "LoRA" if settings.actor.model.is_lora else "all"
            say(f"{learning:,} of {total:,} parameters learn ({kind})")

        def keep(report: SftReport) -> None:
            if group.rank == 0:
                scores = None if report.val is None else report.val.to_json()
                save(model, best_model(settings.output), {**note, "step": report.step, "val": scores})
            group.barrier()

        from referee.training.vlm.trainer import TrendTrainer  # it imports transformers

        trainer = TrendTrainer(model, train, val, settings, group=group, keep=keep)
        if resume is not None:
            trainer.restore(resume)
        return trainer.fit(show, stop, began)


def prepare(model: Qwen, settings: FineTuning) -> None:
    """Make the network learn: all of it, or an adapter beside it."""
    chosen = settings.actor.model
    if not chosen.is_lora:
        model.net.requires_grad_(True)
        return
    model.net = qwen.add_lora(
        model.net, rank=chosen.lora_rank, alpha=chosen.lora_alpha, dropout=chosen.lora_dropout,
        vision=chosen.lora_vision,
    )  # fmt: skip


def save(model: Qwen, folder: Path, note: dict[str, Any]) -> None:
    """Weights as safetensors with their note; the folder appears when all of it is there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        built = Path(temporary) / "new"
        model.net.save_pretrained(built)
        if not (built / qwen.ADAPTER).is_file():
            model.encoder.tokenizer.save_pretrained(built)
            model.encoder.images.save_pretrained(built)
        qwen.write_note(built, note)
        checksums.write_sums(built, [path.name for path in built.iterdir() if path.is_file()])
        for path in built.iterdir():
            files.flush(path)
        if folder.exists():
            folder.rename(Path(temporary) / "old")
        built.rename(folder)
        files.flush(folder.parent)
        shutil.rmtree(Path(temporary) / "old", ignore_errors=True)


def _note(model: Qwen, train: list[Segment], val: list[Segment], settings: FineTuning) -> dict[str, Any]:
    """What somebody who finds the weights wants to know; taken before anything is changed."""
    chosen = settings.actor.model
    path = Path(chosen.model_path)
    return {
        "version": __version__,
        "base": qwen.fingerprint(model.net) if chosen.is_lora else None,
        "model_path": str(path.resolve() if path.is_dir() else path),
        "input_builder_name": settings.data.input_builder_name,
        "input_builder_params": settings.builder_params,
        "use_chat_template": chosen.use_chat_template,
        "data": {"train": digest(train), "val": digest(val)},
        "episodes": {side: sorted({each.episode for each in some}) for side, some in (("train", train), ("val", val))},
        "fingerprint": {"train": Fingerprint.of(pictures() for _, pictures in pictures_of(train)).to_json()},
        "options": settings.to_json(),
    }
