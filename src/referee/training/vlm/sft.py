"""The recipe of a fine-tuning: windows, a Qwen3-VL, the loop, and weights that can be used as they are."""

from __future__ import annotations

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
from referee.training.vlm.fit import Sft, SftReport, SftResult
from referee.training.vlm.options import SftOptions
from referee.training.vlm.segments import Segment, check_split, counts, digest, pictures_of, read_segments

Say = Callable[[str], None]


def fine_tune(
    options: SftOptions,
    console: Console,
    *,
    log: Log | None = None,
    stop: Callable[[], bool] | None = None,
) -> Path:
    """Fine-tune, and return the folder of the best weights: an adapter, or a whole model.

    stop: asked after every step, in a single process; when it says yes, the training is saved and ends.
    """

    def say(line: str) -> None:
        warned = line.startswith("warning:")
        console.print(line, style="bold yellow" if warned else None, highlight=False, markup=False, soft_wrap=True)

    began = time.time()
    train, val = read_data(options)
    say(f"training windows: {_listed(train)}; validation: {_listed(val) if val else 'none'}")
    if not val:
        say("warning: there is no validation, so the best model is that of the lowest training loss")
    with Bar(console, log, describe=describe, numbers=numbers) as bar:
        if options.num_processes == 1:
            result = _work(Group(), bar.show, options, began, say=say, stop=stop)
        else:
            result = _in_processes(options, bar.show, stop, began)
    seconds = max((each.seconds for each in (*result.history, result.best)), default=0.0)
    say(f"{result.reason} at step {result.step} after {seconds:.0f} s; best at step {result.best.step}:")
    say(f"  {describe(result.best)}")
    for line in () if result.best.val is None else result.best.val.table():
        say(f"    {line}")
    return best_model(options.output)


def read_data(options: SftOptions) -> tuple[list[Segment], list[Segment]]:
    """The windows of both sides."""
    train = read_segments(options.train, options.root, frames=options.frames)
    val = read_segments(options.val, options.root, frames=options.frames) if options.val else []
    check_split(train, val)
    return train, val


def describe(report: SftReport) -> str:
    """The numbers of a report in words."""
    words = f"training loss {report.train_loss:.4f}"
    return words if report.val is None else f"validation {report.val}; {words}"


def _listed(segments: list[Segment]) -> str:
    return ", ".join(f"{count} {label}" for label, count in counts(segments).items())


def _in_processes(
    options: SftOptions, show: Callable[[SftReport], None], stop: Callable[[], bool] | None, began: float
) -> SftResult:
    found: list[SftResult] = []

    def hear(what: SftReport | SftResult) -> None:
        if isinstance(what, SftResult):
            found.append(what)
        else:
            show(what)

    parallel.launch(_child, (options, began), backend="ddp", processes=options.num_processes, hear=hear, stop=stop)
    return found[0]


def _child(
    group: Group, tell: Callable[[Any], None], stop: Callable[[], bool], options: SftOptions, began: float
) -> None:
    cpu.cap_if_needed()
    import_modules(options.imports)
    tell(_work(group, tell, options, began, stop=stop))


def _work(
    group: Group,
    show: Callable[[SftReport], None],
    options: SftOptions,
    began: float,
    *,
    say: Say | None = None,
    stop: Callable[[], bool] | None = None,
) -> SftResult:
    """One process: it loads the model and the windows itself."""
    train, val = read_data(options)
    resume = None if options.resume is None else checkpoint.load(checkpoint.find(options.resume))
    with threads(options.threads):
        torch.manual_seed(options.seed)
        model = qwen.load(options.model)
        note = _note(model, train, val, options)
        prepare(model, options)
        if say is not None:
            learning = sum(each.numel() for each in model.net.parameters() if each.requires_grad)
            total = sum(each.numel() for each in model.net.parameters())
            say(f"{learning:,} of {total:,} parameters learn ({'all' if options.lora is None else 'LoRA'})")

        def keep(report: SftReport) -> None:
            if group.rank == 0:
                scores = None if report.val is None else report.val.to_json()
                save(model, best_model(options.output), {**note, "step": report.step, "val": scores})
            group.barrier()

        fitting = Sft(model, train, val, options, group=group, keep=keep)
        if resume is not None:
            fitting.restore(resume)
        return fitting.run(show, stop, began)


def prepare(model: Qwen, options: SftOptions) -> None:
    """Make the network learn: all of it, or an adapter beside it."""
    if options.lora is None:
        model.net.requires_grad_(True)
    else:
        lora = options.lora
        model.net = qwen.add_lora(model.net, rank=lora.rank, alpha=lora.alpha, dropout=lora.dropout, vision=lora.vision)
    if options.gradient_checkpointing:
        model.net.enable_input_require_grads()
        model.net.gradient_checkpointing_enable({"use_reentrant": False})


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


def _note(model: Qwen, train: list[Segment], val: list[Segment], options: SftOptions) -> dict[str, Any]:
    """What somebody who finds the weights wants to know; taken before anything is changed."""
    path = Path(options.model.model_path)
    return {
        "version": __version__,
        "base": qwen.fingerprint(model.net) if options.lora is not None else None,
        "model_path": str(path.resolve() if path.is_dir() else path),
        "input_builder_name": options.builder_name,
        "input_builder_params": dict(options.builder_params),
        "use_chat_template": options.model.use_chat_template,
        "data": {"train": digest(train), "val": digest(val)},
        "episodes": {side: sorted({each.episode for each in some}) for side, some in (("train", train), ("val", val))},
        "fingerprint": {"train": Fingerprint.of(pictures() for _, pictures in pictures_of(train)).to_json()},
        "options": options.to_json(),
    }


def numbers(report: SftReport) -> dict[str, float]:
    """A report under the names of logs."""
    found = {"train/loss": report.train_loss, "train/lr": report.lr, "time/seconds": report.seconds}
    if report.val is not None:
        found |= {f"val/{name}": value for name, value in report.val.numbers().items()}
    return found
