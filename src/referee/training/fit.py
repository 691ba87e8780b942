"""The loop: steps over batches, validation at the natural base rate, the best model kept, and an exact way back.

All that is random is drawn from (seed, step, micro-batch): a resumed run, and a run in several processes, see the same
frames, changed alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from referee.errors import RefereeError
from referee.metrics.ranking import auroc
from referee.models.contract import RewardModel, bce
from referee.models.threads import in_threads
from referee.training import checkpoint
from referee.training.crew import Crew, seed_dropout
from referee.training.options import FitOptions
from referee.training.parallel import Group, spread, whole
from referee.training.running import Running, settle
from referee.training.sampling import Sampler
from referee.training.schedule import factor
from referee.training.source import Source
from referee.training.switches import safe_convolutions, threads

EVAL_BATCH = 64
"""Frames per forward pass without gradients: small ones stay in the cache of a CPU."""
State = dict[str, Tensor]


@dataclass(frozen=True)
class Scores:
    """How a model does on some frames."""

    auroc: float
    loss: float
    accuracy: float


@dataclass(frozen=True)
class Report:
    """Where a training is."""

    step: int
    total_steps: int
    epoch: float
    """Passes over the training frames so far."""
    lr: float
    train_loss: float
    """Mean of this epoch so far, as the accuracy."""
    train_accuracy: float
    seconds: float
    val: Scores | None = None
    best: bool = False
    """Whether this validation was the best so far."""
    warmup: bool = False
    """Whether the encoder is being warmed up; the steps are then those of the warm-up."""

    @property
    def log_step(self) -> int:
        """The step under which it is logged: 0 during a warm-up, after which the steps begin."""
        return 0 if self.warmup else self.step


@dataclass
class FitResult:
    """How a training ended."""

    step: int
    reason: str
    """`finished`, `early stop` or `interrupted`."""
    state: State
    """The weights of the best validation."""
    best: Report
    history: list[Report] = field(default_factory=list)
    """One report per validation."""
    seconds: float = 0.0


def fit(
    model: RewardModel,
    train: Source,
    val: Source | None,
    options: FitOptions,
    *,
    head_only: bool = False,
    folder: Path | None = None,
    save_dir: Path | None = None,
    resume: dict[str, Any] | None = None,
    group: Group | None = None,
    report: Callable[[Report], None] | None = None,
    on_best: Callable[[State, Report], None] | None = None,
    stop: Callable[[], bool] | None = None,
    began: float | None = None,
) -> FitResult:
    """Fit a model, or its head alone on features of its frozen encoder; the model ends with the best weights.

    folder: where checkpoints/step_<n>/checkpoint.pt go; None writes none.
    save_dir: where step_<n>/checkpoint.pt go instead; `folder` then holds links to them.
    resume: what `checkpoint.load` gave.
    on_best: takes the weights whenever a validation is the best so far.
    stop: asked after every step (now and then, in a group); at its yes a checkpoint is written and the result returned.
    began: when the work began, on the clock of `time.time`, where the seconds before the first step count as well.
    """
    with threads(1 if head_only else options.threads), safe_convolutions(model, head_only=head_only):
        fitting = _Fit(model, train, val, options, head_only, folder, save_dir, group or Group())
        with closing(fitting.crew):
            return fitting.run(resume, report or _ignore, on_best or _ignore, stop or _never, began)


@torch.no_grad()
def score(net: nn.Module, source: Source, group: Group | None = None, threads: int | None = None) -> np.ndarray:
    """Logits f32[N] of all frames as they are, in eval mode; shared out over the processes, or over threads."""
    group = group or Group()
    count = len(source.labels)
    pieces = np.array_split(np.arange(count), group.world * -(-count // (EVAL_BATCH * group.world)))
    logits = np.zeros(count, np.float32)

    def judge(piece: np.ndarray) -> None:
        some = piece if len(piece) else np.array([0])  # every process takes part in every pass
        logits[piece] = net(source.inputs(some, None)).numpy()[: len(piece)]

    was_training = net.training
    net.eval()
    if group.world == 1:
        in_threads(judge, pieces, threads)
    else:
        for piece in pieces[group.rank :: group.world]:
            judge(piece)
    net.train(was_training)
    return group.sum(logits)


def judge(labels: np.ndarray, logits: np.ndarray) -> Scores:
    """AUROC, loss and accuracy at a threshold of one half."""
    loss = bce(torch.from_numpy(logits.astype(np.float64)), torch.from_numpy(labels))
    return Scores(auroc(labels, logits), float(loss), float(((logits > 0) == labels).mean()))


class Net(nn.Module):
    """From what a source gives to logits: the whole model on images, or its head on features."""

    def __init__(self, model: RewardModel, *, head_only: bool) -> None:
        super().__init__()
        self.model, self.head_only = model, head_only

    def forward(self, inputs: Tensor) -> Tensor:
        """logits f32[n]"""
        return self.model.head(inputs) if self.head_only else self.model(self.model.prepare(inputs))


class _Fit:
    """One training under way."""

    def __init__(
        self,
        model: RewardModel,
        train: Source,
        val: Source | None,
        options: FitOptions,
        head_only: bool,
        folder: Path | None,
        save_dir: Path | None,
        group: Group,
    ) -> None:
        if val is None and options.best_metric != "train_accuracy":
            raise RefereeError(f"best_metric is {options.best_metric}, but there are no validation frames")
        self.model, self.train, self.val, self.options, self.folder, self.save_dir, self.group = (
            model, train, val, options, folder, save_dir, group,
        )  # fmt: skip
        chunks = options.chunks(head_only=head_only)
        self.sampler = Sampler(
            train.labels, options.global_batch_size, options.seed, options.sampling == "balanced", chunks
        )
        self.total = options.total_steps(self.sampler.steps_per_epoch, head_only=head_only)
        self.warmup = round(options.warmup_ratio * self.total)
        self.positive_weight = _positive_weight(options, train.labels)
        self.prior = _prior(options, train.labels)
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster on a CPU
        self.net = Net(model, head_only=head_only).train()
        self.crew = Crew(self.net, chunks if group.world == 1 else 1)
        self._found: dict[int, Running] = {}
        self.step, self.seconds = 0, 0.0
        self.sums = np.zeros(3)
        """Loss, right answers and frames of this epoch so far."""
        self.history: list[Report] = []
        self.best: Report | None = None
        self.best_state: State = {}
        self.waited, self.mark = 0, -math.inf
        """Validations since the last one that counted as better, and how good that was."""

    def run(
        self,
        resume: dict[str, Any] | None,
        report: Callable[[Report], None],
        on_best: Callable[[State, Report], None],
        stop: Callable[[], bool],
        began: float | None,
    ) -> FitResult:
        if resume is not None:
            _load_model(self.model, resume)
        self.wrapped = self.group.wrap(self.net)
        self.learning = [each for each in self.net.parameters() if each.requires_grad]
        self.optimizer = _optimizer(self.net, self.options, fused=self.group.world == 1)
        if resume is not None:
            self._restore(resume)
        self.seconds += 0.0 if began is None else max(0.0, time.time() - began)
        started, reason = time.perf_counter() - self.seconds, "finished"
        self.wrapped.train()
        while self.step < self.total and reason == "finished":
            epoch, place = divmod(self.step, self.sampler.steps_per_epoch)
            for chunks in self.sampler.epoch(epoch)[place:]:
                self._learn(chunks)
                self.seconds = time.perf_counter() - started
                at_end = self.step % self.sampler.steps_per_epoch == 0 or self.step == self.total
                if at_end and self._due(self.options.val_check_interval):
                    latest = self._validate()
                    if latest.best:
                        self.best_state = self._state()
                        on_best(self.best_state, latest)
                    report(latest)
                    if self.options.early_stop.patience and self.waited >= self.options.early_stop.patience:
                        reason = "early stop"
                elif self.step % self.options.log_interval == 0:
                    report(self._report())
                if self.group.agrees(stop, self.step) and reason == "finished" and self.step < self.total:
                    reason = "interrupted"
                if reason != "finished" or self.step == self.total:
                    break
                if self._to_save(at_end):
                    self._save()
                if at_end:
                    self.sums[:] = 0
        self._save()
        if self.best is None:  # interrupted before the first validation
            self.best, self.best_state = self._report(), self._state()
        _load_model(self.model, {"model_state_dict": self.best_state}, group=self.group)
        return FitResult(self.step, reason, self.best_state, self.best, self.history, self.seconds)

    def _due(self, epochs: int) -> bool:
        """Whether something that happens every so many epochs happens now, at the end of one."""
        return self.step == self.total or (self.step // self.sampler.steps_per_epoch) % epochs == 0

    def _to_save(self, at_end: bool) -> bool:
        epochs, steps = self.options.save_interval, self.options.save_steps
        return self.step % steps == 0 if steps else bool(at_end and epochs and self._due(epochs))

    def _learn(self, chunks: list[np.ndarray]) -> None:
        """One optimiser step, and its part of the epoch's sums."""
        options, group, count = self.options, self.group, sum(map(len, chunks))
        rate = options.lr * factor(self.step, self.total, schedule=options.schedule, warmup_steps=self.warmup)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
        self.optimizer.zero_grad()
        running = self._running(self.net)
        before = [each.clone() for each in running.statistics] if len(chunks) > 1 else []
        counters = [each + 1 for each in running.counters]
        jobs = [
            _Job(number, chunks[number], count, before, number + group.world >= len(chunks))
            for number in range(group.rank, len(chunks), group.world)
        ]
        if group.world == 1:
            done = self.crew.map(self._derive, jobs)
            for each in done:
                _add(self.learning, each.gradients)
        else:
            done = [self._derive(self.wrapped, job) for job in jobs]
        for each in done:
            self.sums += each.sums
        norm = nn.utils.clip_grad_norm_(self.learning, options.clip_grad or math.inf)
        if not math.isfinite(float(whole(norm))):
            self._give_up()
        self.optimizer.step()
        if before:
            settle(running.statistics, [each.statistics for each in done], len(chunks), group)
            for counter, most in zip(running.counters, counters, strict=True):
                counter.copy_(torch.minimum(counter, most))
        self.step += 1

    def _derive(self, net: nn.Module, job: _Job) -> _Done:
        """One micro-batch, forward and backward."""
        statistics = self._running(net).statistics if job.before else []
        for buffer, value in zip(statistics, job.before, strict=True):
            buffer.copy_(value)
        indices, key = job.indices, (self.options.seed, self.step, job.number)
        seed_dropout(int(np.random.default_rng((*key, 1)).integers(2**62)))
        inputs = self.train.inputs(indices, np.random.default_rng(key))
        labels = torch.from_numpy(self.train.labels[indices])
        weights = None if self.positive_weight == 1 else torch.where(labels == 1, self.positive_weight, 1.0)
        gradients: Sequence[Tensor | None] = ()
        with self.group.syncing(net, job.last):
            logits = net(inputs) + self.prior
            loss = bce(logits, labels, weights)
            share = loss * (self.group.world * len(indices) / job.count)
            if self.group.world == 1:
                gradients = torch.autograd.grad(share, self.learning, allow_unused=True)
            else:
                torch.autograd.backward(share)
        right = float(((logits.detach() > 0) == labels).sum())
        sums = np.array([float(loss.detach()) * len(indices), right, len(indices)])
        return _Done(sums, gradients, [each.clone() for each in statistics])

    def _running(self, net: nn.Module) -> Running:
        """What the layers of a network count while they learn; looked up once."""
        if id(net) not in self._found:
            self._found[id(net)] = Running.of(net)
        return self._found[id(net)]

    def _validate(self) -> Report:
        scores = (
            None
            if self.val is None
            else judge(self.val.labels, score(self.wrapped, self.val, self.group, self.options.threads))
        )
        latest = self._report(scores)
        better = self.best is None or self._merit(latest) > self._merit(self.best)
        if better:
            latest = Report(**{**vars(latest), "best": True})
            self.best = latest
        merit = self._merit(latest)[0]
        self.waited = 0 if merit > self.mark + self.options.early_stop.min_delta else self.waited + 1
        self.mark = merit if self.waited == 0 else self.mark
        self.history.append(latest)
        return latest

    def _merit(self, report: Report) -> tuple[float, float]:
        """The chosen metric, larger is better; the loss decides between equals."""
        val = report.val
        loss = report.train_loss if val is None else val.loss
        if self.options.best_metric == "train_accuracy":
            return report.train_accuracy, -loss
        assert val is not None
        return {"val_auroc": val.auroc, "val_accuracy": val.accuracy, "val_loss": -val.loss}[
            self.options.best_metric
        ], -loss

    def _report(self, scores: Scores | None = None) -> Report:
        loss, right, frames = self.group.sum(self.sums)
        epoch, lr = self.step / self.sampler.steps_per_epoch, float(self.optimizer.param_groups[0]["lr"])
        frames = max(frames, 1)
        return Report(
            self.step, self.total, epoch, lr, float(loss / frames), float(right / frames), self.seconds, scores
        )

    def _state(self) -> State:
        """The model's weights, whole."""
        return whole(dict(self.model.state_dict()))

    def _save(self) -> Path | None:
        """Write a checkpoint; every process takes part, the first one writes."""
        if self.folder is None:
            return None
        path = (self.save_dir or self.folder / "checkpoints") / f"step_{self.step}" / checkpoint.NAME
        now = self._report()
        values = {
            "epoch": self.step // self.sampler.steps_per_epoch,
            "model_state_dict": self._state(),
            "optimizer_state_dict": whole(self.optimizer.state_dict()),
            "train_loss": now.train_loss,
            "train_acc": now.train_accuracy,
            "step": self.step,
            "total_steps": self.total,
            "steps_per_epoch": self.sampler.steps_per_epoch,
            "head_only": self.net.head_only,
            "seconds": self.seconds,
            "sums": self.group.sum(self.sums).tolist(),
            "waited": self.waited,
            "mark": self.mark,
            "best": None if self.best is None else asdict(self.best),
            "best_model_state_dict": self.best_state,
            "history": [asdict(each) for each in self.history],
            "options": self.options.to_json(),
            "config": self.model.spec.to_json(),
        }
        if self.group.rank == 0:
            checkpoint.save(path, values)
            checkpoint.link(path.parent, self.folder / "checkpoints")
        return path

    def _restore(self, values: dict[str, Any]) -> None:
        missing = [name for name in ("step", "sums", "history", "options") if name not in values]
        if missing:
            raise RefereeError(f"the checkpoint has weights, but no {missing[0]} to go on from: give it as model_path")
        here = (self.total, self.sampler.steps_per_epoch, self.net.head_only)
        there = (values["total_steps"], values["steps_per_epoch"], values["head_only"])
        if here != there:
            raise RefereeError(
                f"the checkpoint is of a training with {there[1]} steps per epoch and {there[0]} in all, this one has "
                f"{here[1]} and {here[0]}: resume with the same data, batch size and epochs"
            )
        state = values["optimizer_state_dict"]
        parameters = [each for one in self.optimizer.param_groups for each in one["params"]]
        moments = {
            number: {name: spread(value, parameters[number]) for name, value in each.items()}
            for number, each in state["state"].items()
        }
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
        self.step, self.seconds = values["step"], values["seconds"]
        if self.step % self.sampler.steps_per_epoch and self.group.rank == 0:
            self.sums = np.array(values["sums"])
        self.waited, self.mark = values["waited"], values["mark"]
        self.best = None if values["best"] is None else _report_from(values["best"])
        self.best_state = {name: tensor.clone() for name, tensor in values["best_model_state_dict"].items()}
        self.history = [_report_from(each) for each in values["history"]]

    def _give_up(self) -> None:
        """The weights are still those of the last good step: keep them, and say so."""
        path = self._save()
        kept = "" if path is None else f"; the weights before it are in {path.parent}"
        raise RefereeError(
            f"the loss or its gradient is not a number at step {self.step}: lower lr ({self.options.lr:g}) or set "
            f"clip_grad{kept}"
        )


@dataclass(frozen=True)
class _Job:
    """One micro-batch of a step."""

    number: int
    indices: np.ndarray
    count: int
    """Frames of the whole step."""
    before: list[Tensor]
    """Running statistics at its beginning, where it has several micro-batches."""
    last: bool
    """Whether it is the last one of this process."""


@dataclass(frozen=True)
class _Done:
    """What came of it."""

    sums: np.ndarray
    gradients: Sequence[Tensor | None]
    statistics: list[Tensor]


def _add(parameters: list[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)  # in the parameter's own memory format
            parameter.grad += gradient


def _optimizer(net: nn.Module, options: FitOptions, *, fused: bool) -> torch.optim.Optimizer:
    groups = decay_groups([each for each in net.parameters() if each.requires_grad], options.weight_decay)
    kind = torch.optim.AdamW if options.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=options.lr, fused=fused)


def decay_groups(learning: list[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Weights decay; biases and the parameters of normalisation layers do not."""
    groups: list[dict[str, Any]] = [
        {"params": [each for each in learning if each.ndim > 1], "weight_decay": weight_decay},
        {"params": [each for each in learning if each.ndim <= 1], "weight_decay": 0.0},
    ]
    if not learning:
        raise RefereeError("nothing in the model can learn: all of its parameters are frozen")
    return [group for group in groups if group["params"]]


def _positive_weight(options: FitOptions, labels: np.ndarray) -> float:
    if options.positive_weight is None:
        return 1.0
    return options.positive_weight or float((labels == 0).sum() / max(1, (labels == 1).sum()))


def _prior(options: FitOptions, labels: np.ndarray) -> float:
    """What a balanced batch adds to the log-odds of success, so that the model's own logits fit the natural rate."""
    if options.sampling == "natural":
        return 0.0
    return math.log((labels == 0).sum() / (labels == 1).sum())


def _load_model(model: RewardModel, values: dict[str, Any], group: Group | None = None) -> None:
    state = values["model_state_dict"]
    if group is not None and group.backend == "fsdp" and group.world > 1:
        current = dict(model.state_dict())
        state = {name: spread(tensor, current[name]) for name, tensor in state.items()}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise RefereeError(f"the checkpoint has another network: {' '.join(str(error).split())[:300]}") from error


def _report_from(values: dict[str, Any]) -> Report:
    val = values["val"]
    return Report(**{**values, "val": None if val is None else Scores(**val)})


def _ignore(*_: Any) -> None:
    pass


def _never() -> bool:
    return False
