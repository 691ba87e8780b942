"""The recipe: frames, a model, the fit, an artifact. Whatever starts the training of a reward model ends up here."""

from __future__ import annotations

import logging
import math
import platform
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from referee import __version__
from referee.config.datasets import DataConfig
from referee.config.reward_training import ResNetModelConfig, ResumeConfig, SaveDirConfig
from referee.errors import RefereeError
from referee.files import cache_dir
from referee.models import weights
from referee.models.artifact import Artifact, Reference, embed
from referee.models.contract import ModelSpec, RewardModel, probability_of
from referee.models.registry import build
from referee.training import checkpoint, debug, parallel
from referee.training.bar import Bar, Log
from referee.training.data import Data, FrameSet, check_source, open_data
from referee.training.described import spec_fields
from referee.training.features import cached_features, forget
from referee.training.fit import FitResult, Report, fit
from referee.training.options import FitOptions
from referee.training.parallel import Group, Launch
from referee.training.sampling import evenly
from referee.training.source import FeatureSource, ImageSource
from referee.training.switches import threads

WARMUP_STEPS = 70
"""Of a frozen encoder that has no pretrained weights."""
REFERENCE_FRAMES, USUAL_FRAMES = 2048, 512
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainOptions(SaveDirConfig, ResumeConfig):
    """A whole training of a reward model: sections of the configuration, and where it happens."""

    data: DataConfig
    output: Path
    """The run: checkpoints/step_<n>/checkpoint.pt and the artifact checkpoints/best_model/ go there."""
    model: ResNetModelConfig | Mapping[str, Any] = field(default_factory=ResNetModelConfig)
    """Or the fields of a `ModelSpec`, as of a model of your own; cameras and image_size are those of the data unless
    they are given. `pretrained` and `model_path` are weights to start from."""
    fit: FitOptions = field(default_factory=FitOptions)
    checkpoints: tuple[Path, ...] = ()
    """Where the best weights go once more, as the documented .pt."""
    cache_dir: Path | None = None
    """Where features of frozen encoders are kept; None = Referee's cache."""

    def __post_init__(self) -> None:
        if self.pretrained is not None and self.model_path is not None:
            raise RefereeError("pretrained and model_path: give one of the two, both are weights to start from")
        spec_fields(self.model)  # what cannot be read is refused before anything is written

    @property
    def pretrained(self) -> Path | None:
        """An encoder's weights, see `registry.build`."""
        return self._start("pretrained")

    @property
    def model_path(self) -> Path | None:
        """An artifact or checkpoint to go on learning from; it also says what the model is."""
        return self._start("model_path")

    @property
    def resume(self) -> Path | None:
        """A run or checkpoint.pt of the same training to go on with, exactly where it was."""
        return None if self.resume_dir is None else Path(self.resume_dir)

    @property
    def steps_dir(self) -> Path | None:
        """Where step_<n>/checkpoint.pt go instead of the run, which then holds links to them."""
        return None if self.save_dir is None else Path(self.save_dir)

    def _start(self, name: str) -> Path | None:
        path = self.model.get(name) if isinstance(self.model, Mapping) else getattr(self.model, name)
        return None if path is None else Path(path)


def check_paths(options: TrainOptions) -> None:
    """Refuse what is named and not there, before anything is written."""
    data = options.data
    check_source(data)
    named: tuple[tuple[str, tuple[Path | str | None, ...]], ...] = (
        ("data_path", (data.data_path,)), ("train_data_paths", data.train_data_paths or ()),
        ("val_data_paths", data.val_data_paths or ()), ("positive_dir", (data.positive_dir,)),
        ("negative_dir", (data.negative_dir,)), ("pretrained encoder", (options.pretrained,)),
        ("model_path", (options.model_path,)), ("resume_dir", (options.resume,)),
    )  # fmt: skip
    for name, paths in named:
        for path in paths:
            if path is not None and not Path(path).exists():
                raise RefereeError(f"{name} {path} is not there: check the path")


def train(
    options: TrainOptions,
    console: Console,
    *,
    log: Log | None = None,
    stop: Callable[[], bool] | None = None,
    launch: Launch | None = None,
) -> Path:
    """Train a reward model and return the directory of its artifact.

    log: takes named numbers at a step, as a `Logbook` does.
    stop: asked after every step, or nearly so; when it says yes, the training is saved and ends.
    launch: what runs it elsewhere; None: here, or in processes of this machine where several are wanted.
    """

    def say(line: str) -> None:
        warned = line.startswith("warning:")
        if warned and console.quiet:
            _log.warning("%s", line.removeprefix("warning: "))
        console.print(line, style="bold yellow" if warned else None, highlight=False, markup=False, soft_wrap=True)

    began = time.time()
    check_paths(options)
    resume = None if options.resume is None else checkpoint.load(checkpoint.find(options.resume))
    data = open_data(options.data, options.output / "data", say)
    if options.data.debug_save_dir is not None:
        shown = Path(options.data.debug_save_dir) / "training"
        there = debug.already(shown)
        say(f"{debug.save_by_label(data.train, shown)} training frames as pictures in {shown}{there}")
    model = make_model(options, data, say)
    options = replace(options, fit=_with_warmup(options, model, say))
    if options.fit.best_metric != "train_accuracy" and data.val is None:
        say("warning: there is no validation, so the best model is that of the highest training accuracy")
        options = replace(options, fit=replace(options.fit, best_metric="train_accuracy"))
    size = sum(each.numel() for each in model.parameters())
    say(f"{model.spec.model_type} {model.spec.arch}, width {model.spec.width}, {size:,} parameters")
    with Bar(console, log, describe=describe, numbers=numbers) as bar:
        if launch is None and options.fit.num_processes == 1:
            result = fit_model(model, data, options, resume=resume, report=bar.show, stop=stop, began=began)
        else:
            result = _in_processes(model, data, options, bar.show, stop, launch or parallel.launch, began)
    return _finish(model, data, options, result, say)


TRAINED_AS_SET = (*weights.RUN_TIME, "dropout")
"""Fields of a model's spec that a training may change; what goes on learning keeps all others."""


def make_model(options: TrainOptions, data: Data, say: Callable[[str], None]) -> RewardModel:
    """The model to train, for the cameras and the size of the data."""
    wanted = spec_fields(options.model)
    given = set(wanted)
    size = min(data.train.size)
    wanted.setdefault("image_size", size)
    if (wanted["image_size"],) * 2 != data.train.size and not wanted.get("crop"):
        height, width = data.train.size
        wanted.setdefault("resize", "bilinear")
        say(f"images of {width}x{height} px are scaled to {wanted['image_size']}x{wanted['image_size']}")
    wanted.setdefault("cameras", data.train.cameras)
    spec = ModelSpec.from_json(wanted)
    if len(spec.cameras) != len(data.train.cameras):
        raise RefereeError(
            f"the model looks at {', '.join(spec.cameras)}, but the data show {', '.join(data.train.cameras)}: "
            "choose data.cameras"
        )
    torch.manual_seed(options.fit.seed)
    if options.model_path is None:
        return build(spec, pretrained=options.pretrained)
    model = Artifact.open(options.model_path, spec, given, TRAINED_AS_SET).model
    if len(model.spec.cameras) != len(data.train.cameras) or model.spec.image_size != spec.image_size:
        raise RefereeError(
            f"{options.model_path} looks at {', '.join(model.spec.cameras)} with {model.spec.image_size} px, the data "
            f"show {', '.join(data.train.cameras)} with {spec.image_size} px"
        )
    model.spec = model.spec.but(cameras=spec.cameras)
    return model.freeze(spec.freeze_encoder)


def fit_model(
    model: RewardModel,
    data: Data,
    options: TrainOptions,
    *,
    resume: dict[str, Any] | None = None,
    group: Group | None = None,
    report: Callable[[Report], None] | None = None,
    stop: Callable[[], bool] | None = None,
    began: float | None = None,
) -> FitResult:
    """Fit all of a model, or warm up its encoder, freeze it and fit the head on cached features.

    began: see `fit`; all that happens here counts in any case.
    """
    began = time.time() if began is None else began
    group, chosen = group or Group(), options.fit
    frozen = model.spec.freeze_encoder

    def keep(state: dict[str, torch.Tensor], latest: Report) -> None:
        if group.rank == 0:
            _artifact(model.spec, state, data, options, latest).save(best_model(options.output))

    images = ImageSource(data.train, chosen.augment)
    if not frozen:
        val = None if data.val is None else ImageSource(data.val)
        return fit(model, images, val, chosen, folder=options.output, save_dir=options.steps_dir, resume=resume,
                   group=group, report=report, on_best=keep, stop=stop, began=began)  # fmt: skip
    if resume is not None:
        weights.fill(model, resume["model_state_dict"], "the checkpoint")
    elif chosen.encoder_warmup_steps:
        model = _warm_up(model, images, chosen, group, report, began)
    train, features = _encoded(model, data, options, group)
    return fit(model, train, features, chosen, head_only=True, folder=options.output, save_dir=options.steps_dir,
               resume=resume, group=group, report=report, on_best=keep, stop=stop, began=began)  # fmt: skip


def best_model(output: Path) -> Path:
    """Where the artifact of a run is."""
    return output / "checkpoints" / "best_model"


def _with_warmup(options: TrainOptions, model: RewardModel, say: Callable[[str], None]) -> FitOptions:
    """How long the encoder is warmed up, where nobody has said it."""
    chosen = options.fit
    random = options.pretrained is None and options.model_path is None
    if not model.spec.freeze_encoder:
        if chosen.encoder_warmup_steps:
            raise RefereeError("encoder_warmup_steps has no effect unless the encoder is frozen: set freeze_encoder")
        return replace(chosen, encoder_warmup_steps=0)
    if chosen.encoder_warmup_steps is None:
        steps = WARMUP_STEPS if random and options.resume is None else 0
        if steps:
            say(f"the encoder has no pretrained weights: it learns for {steps} steps before it is frozen")
        return replace(chosen, encoder_warmup_steps=steps)
    if random and not chosen.encoder_warmup_steps:
        say(
            "warning: the frozen encoder is random; give pretrained weights, or let it learn: "
            f"encoder_warmup_steps={WARMUP_STEPS}"
        )
    return chosen


def _warm_up(
    model: RewardModel,
    images: ImageSource,
    chosen: FitOptions,
    group: Group,
    report: Callable[[Report], None] | None,
    began: float,
) -> RewardModel:
    """Some steps with the whole model; then the encoder is frozen."""

    def tell(latest: Report) -> None:
        if report is not None:
            report(replace(latest, warmup=True))

    model.freeze(False)
    short = replace(
        chosen, max_epochs=None, max_steps=chosen.encoder_warmup_steps, best_metric="train_accuracy",
        val_check_interval=1_000_000,
    )  # fmt: skip
    result = fit(model, images, None, short, group=group, report=tell, began=began)
    if group.backend == "fsdp" and group.world > 1:  # its weights are spread over the processes
        model = build(model.spec)
        weights.fill(model, result.state, "the weights")
    return model.freeze(True)


def _encoded(
    model: RewardModel, data: Data, options: TrainOptions, group: Group
) -> tuple[FeatureSource, FeatureSource | None]:
    """Both sides as features; the first process encodes, the others read what it wrote."""
    folder = options.cache_dir or _cache()
    chosen = options.fit

    def sources() -> tuple[FeatureSource, FeatureSource | None]:
        with threads(chosen.threads):
            train = cached_features(
                model, data.train, data.train.content_hash, folder, copies=chosen.feature_copies,
                augmentation=chosen.augment, seed=chosen.seed,
            )  # fmt: skip
            val = None if data.val is None else cached_features(model, data.val, data.val.content_hash, folder)
        return train, val

    if group.rank == 0:
        forget(folder)
        found = sources()
    group.barrier()
    return found if group.rank == 0 else sources()


def _cache() -> Path:
    return cache_dir() / "features"


def _in_processes(
    model: RewardModel,
    data: Data,
    options: TrainOptions,
    show: Callable[[Report], None],
    stop: Callable[[], bool] | None,
    launch: Launch,
    began: float,
) -> FitResult:
    """The same in several processes, which open data and weights for themselves."""
    start = options.output / "checkpoints" / ".start"
    found: list[FitResult] = []

    def hear(what: Report | FitResult) -> None:
        if isinstance(what, FitResult):
            found.append(what)
        else:
            show(what)

    sides = [
        None if side is None else ([part.path.resolve() for part in side.parts], side.cameras)
        for side in (data.train, data.val)
    ]
    resume = None if options.resume is None else str(options.resume.resolve())  # elsewhere, "here" is another folder
    there = replace(options, output=options.output.resolve(), resume_dir=resume)
    try:
        _artifact(model.spec, dict(model.state_dict()), data, options, None).save(start)
        launch(
            _work, (start.resolve(), sides, there, began), backend=options.fit.training_backend,
            processes=options.fit.num_processes, hear=hear, stop=stop,
        )  # fmt: skip
    finally:
        shutil.rmtree(start, ignore_errors=True)
    kept = Artifact.load(best_model(options.output)).model
    return replace(found[-1], state=dict(kept.state_dict()))


def _work(
    group: Group,
    tell: Callable[[Any], None],
    stop: Callable[[], bool],
    start: Path,
    sides: list[Any],
    options: TrainOptions,
    began: float,
) -> None:
    """One process of several."""
    began = time.time() if group.again else began  # what was lost with a process that died is not counted twice
    logging.getLogger("referee").addHandler(logging.NullHandler())
    for path in (start, *(path for side in sides if side is not None for path in side[0])):
        if not path.exists():
            raise RefereeError(f"there is no {path} here: the data and the run must be in folders that all nodes share")
    train, val = (None if side is None else FrameSet(*side) for side in sides)
    assert train is not None
    place = checkpoint.latest(options.output) if group.again else None
    if place is None and options.resume is not None:
        place = checkpoint.find(options.resume)
    resume = None if place is None else checkpoint.load(place)
    model, data = Artifact.load(start).model, Data(train, val)
    result = fit_model(model, data, options, resume=resume, group=group, report=tell, stop=stop, began=began)
    if group.rank == 0:  # a run that was stopped early, or did no better than the one it goes on from, wrote none
        _artifact(model.spec, result.state, data, options, result.best).save(best_model(options.output))
    tell(replace(result, state={}))  # the weights are in the artifact


def _finish(
    model: RewardModel, data: Data, options: TrainOptions, result: FitResult, say: Callable[[str], None]
) -> Path:
    """The artifact with all that belongs in it, and what people want to look at."""
    best, folder = result.best, best_model(options.output)
    artifact = _artifact(model.spec, result.state, data, options, best)
    artifact.reference = _reference(artifact.model, data)
    artifact.save(folder)
    for place in options.checkpoints:
        _write_checkpoint(place, artifact.model, options, result)
        say(f"wrote {place}")
    if data.val is not None and options.data.debug_save_dir is not None:
        blocks = np.array_split(np.arange(len(data.val)), -(-len(data.val) // 256))
        logits = np.concatenate([artifact.logits(data.val.batch(block)[0]) for block in blocks])
        shown = Path(options.data.debug_save_dir) / "validation"
        there = debug.already(shown)
        count = debug.save_by_verdict(data.val, probability_of(logits), artifact.calibration.threshold, shown)
        say(f"{count} validation frames as pictures in {shown}{there}")
    say(f"{result.reason} at step {result.step} after {result.seconds:.1f} s; best at step {best.step}:")
    say(f"  {describe(best)}")
    return folder


def describe(report: Report) -> str:
    """The numbers of a report in words."""
    words = f"training loss {report.train_loss:.4f}, accuracy {report.train_accuracy:.4f}"
    if report.val is None:
        return words
    val = report.val
    return f"validation AUROC {val.auroc:.4f}, loss {val.loss:.4f}, accuracy {val.accuracy:.4f}; {words}"


def _artifact(
    spec: ModelSpec, state: dict[str, torch.Tensor], data: Data, options: TrainOptions, best: Report | None
) -> Artifact:
    model = build(spec)
    weights.fill(model, state, "the weights")
    fitted = options.fit.to_json()
    provenance = {
        **data.provenance(),
        "seed": options.fit.seed,
        "version": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "options": fitted,
        "pretrained": None if options.pretrained is None else str(options.pretrained),
        "model_path": None if options.model_path is None else str(options.model_path),
    }
    if best is not None:
        provenance["step"] = best.step
        provenance["train"] = {"loss": best.train_loss, "accuracy": best.train_accuracy}
        scores = None if best.val is None else vars(best.val).items()
        provenance["val"] = scores and {name: value if math.isfinite(value) else None for name, value in scores}
    return Artifact(model.eval(), provenance=provenance)


def _reference(model: RewardModel, data: Data) -> Reference:
    """What the training frames look like, and how far from them the frames of validation are; from some of both."""
    images, wins = _some(data.train, REFERENCE_FRAMES)
    found = Reference.of(embed(model, images), images, successes=wins)
    if data.val is None:
        return found
    images, wins = _some(data.val, USUAL_FRAMES)
    return found.calibrated(embed(model, images), successes=wins)


def _some(frames: FrameSet, count: int) -> tuple[np.ndarray, np.ndarray]:
    """uint8[n,…] and bool[n]: so many frames, half of them successes if there are enough, and which are such."""
    labels = frames.labels.numpy()
    rows = evenly(labels, count)
    return frames.batch(rows)[0].numpy(), labels[rows] == 1


def _write_checkpoint(path: Path, model: RewardModel, options: TrainOptions, result: FitResult) -> None:
    """The documented dict: the best weights, with the optimiser as it was at the end."""
    last = checkpoint.load(checkpoint.find(options.output))
    checkpoint.save(
        path,
        {
            "epoch": round(result.best.epoch),
            "model_state_dict": {name: value.contiguous() for name, value in model.state_dict().items()},
            "optimizer_state_dict": last["optimizer_state_dict"],
            "train_loss": result.best.train_loss,
            "train_acc": result.best.train_accuracy,
            "config": model.spec.to_json(),
        },
    )


def numbers(report: Report) -> dict[str, float]:
    """A report under the names of logs."""
    if report.warmup:
        names = {"step": report.step, "loss": report.train_loss, "accuracy": report.train_accuracy, "lr": report.lr}
        return {**{f"warmup/{name}": value for name, value in names.items()}, "time/seconds": report.seconds}
    found = {
        "train/loss": report.train_loss,
        "train/accuracy": report.train_accuracy,
        "train/lr": report.lr,
        "train/epoch": report.epoch,
        "time/seconds": report.seconds,
    }
    if report.val is not None:
        found |= {f"val/{name}": value for name, value in vars(report.val).items()}
    return found
