"""The loop of a fine-tuning: loss of the answers' own tokens, validation by label, the best kept, an exact way back.

All that is random is drawn from (seed, step, micro-batch): a resumed run, and one in several processes, see the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from referee.datasets.windows import LABELS, REVERSED
from referee.errors import RefereeError
from referee.models.vlm.encode import IGNORED, Batch
from referee.models.vlm.judge import score
from referee.models.vlm.qwen import Qwen
from referee.models.window import Window
from referee.training import checkpoint
from referee.training.augment import shifted
from referee.training.crew import seed_dropout
from referee.training.fit import decay_groups
from referee.training.parallel import Group
from referee.training.schedule import factor
from referee.training.vlm.options import SftOptions
from referee.training.vlm.scores import TrendScores
from referee.training.vlm.segments import Segment, digest


@dataclass(frozen=True)
class SftReport:
    """Where a fine-tuning is."""

    step: int
    total_steps: int
    epoch: float
    lr: float
    train_loss: float
    """Mean of this epoch so far."""
    seconds: float
    val: TrendScores | None = None
    best: bool = False

    @property
    def log_step(self) -> int:
        """The step under which it is logged."""
        return self.step


@dataclass
class SftResult:
    """How it ended."""

    step: int
    reason: str
    """`finished`, `early stop` or `interrupted`."""
    best: SftReport
    history: list[SftReport] = field(default_factory=list)


def answer_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """f32[n]: mean cross-entropy of each row's answer tokens.

    logits: f32[n,t,v], what is expected after each token; labels: i64[n,t], what the token itself is, or IGNORED.
    """
    expected, true = logits[:, :-1].float(), labels[:, 1:]
    losses = nn.functional.cross_entropy(expected.transpose(1, 2), true, ignore_index=IGNORED, reduction="none")
    taught = true != IGNORED
    return (losses * taught).sum(1) / taught.sum(1).clamp(min=1)


def batch_loss(net: Any, batch: Batch) -> Tensor:
    """f32[n]: the same of a batch; only the last logits are computed, where the answers are."""
    assert batch.labels is not None
    longest = int((batch.labels != IGNORED).sum(1).max())
    logits = net(**batch.inputs, logits_to_keep=longest + 1).logits
    return answer_loss(logits, batch.labels[:, -(longest + 1) :])


def judge_segments(
    model: Qwen, segments: Sequence[Segment], builder: Callable[[Window], Any], *, size: int, group: Group | None = None
) -> np.ndarray:
    """f32[n,3]: the probabilities of the labels, shared out over the processes."""
    group = group or Group()
    found = np.zeros((len(segments), len(LABELS)), np.float64)
    for number, start in enumerate(range(0, len(segments), size)):
        if number % group.world != group.rank:
            continue
        prompts = [builder(each.window()) for each in segments[start : start + size]]
        logs = score(model, model.encoder.encode(prompts).to(model.device), LABELS)
        found[start : start + size] = torch.softmax(logs.double(), 1).cpu().numpy()
    return group.sum(found).astype(np.float32)


def reversed_some(some: Sequence[tuple[Window, str]], random: np.random.Generator) -> list[tuple[Window, str]]:
    """The same windows with their labels, about every other one backwards."""
    drawn = random.random(len(some)) < 0.5
    return [(w.backwards(), REVERSED[label]) if back else (w, label)
            for (w, label), back in zip(some, drawn, strict=True)]  # fmt: skip


def shift_window(window: Window, reach: int, random: np.random.Generator) -> Window:
    """The same window, each view moved by some pixels, all its frames alike: nothing but the scene moves in it."""
    if not reach:
        return window
    moved = {}
    for name, value in window.frames.items():
        frames = torch.from_numpy(np.ascontiguousarray(value))
        views = frames[:, None] if frames.ndim == 4 else frames
        shift = random.integers(-reach, reach + 1, (1, views.shape[1], 2)).repeat(len(views), 0)
        moved[name] = shifted(views, shift).reshape(frames.shape).numpy()
    return Window(moved, window.task)


class Sft:
    """One fine-tuning under way."""

    def __init__(
        self,
        model: Qwen,
        train: Sequence[Segment],
        val: Sequence[Segment],
        options: SftOptions,
        *,
        group: Group | None = None,
        keep: Callable[[SftReport], None] | None = None,
    ) -> None:
        """keep: called when a validation is the best so far, to save the model."""
        self.model, self.train, self.options = model, train, options
        self.val = _spread(val, options.max_val_windows)
        self.group, self.keep = group or Group(), keep or _ignore
        self.builder = options.builder()
        self.steps_per_epoch = -(-len(train) // options.global_batch_size)
        self.total = self.steps_per_epoch * options.max_epochs
        self.warmup = round(options.warmup_ratio * self.total)
        self.learning = {name: each for name, each in model.net.named_parameters() if each.requires_grad}
        groups = decay_groups(list(self.learning.values()), options.weight_decay)
        self.optimizer = torch.optim.AdamW(groups, lr=options.lr, fused=True)
        self.step, self.seconds, self.sums = 0, 0.0, np.zeros(2)
        """Sums: loss and windows of this epoch so far."""
        self.history: list[SftReport] = []
        self.best: SftReport | None = None
        self.waited, self.mark = 0, -math.inf

    def run(
        self,
        report: Callable[[SftReport], None] | None = None,
        stop: Callable[[], bool] | None = None,
        began: float | None = None,
    ) -> SftResult:
        """Train to the end, to an early stop, or until `stop` says yes.

        began: when the work began, on the clock of `time.time`, where the seconds before the first step count as well.
        """
        report, stop = report or _ignore, stop or _never
        self.seconds += 0.0 if began is None else max(0.0, time.time() - began)
        started, reason, options = time.perf_counter() - self.seconds, "finished", self.options
        while self.step < self.total and reason == "finished":
            self._learn(self._batch(self.step))
            self.seconds = time.perf_counter() - started
            at_end = self.step % self.steps_per_epoch == 0
            epoch = self.step // self.steps_per_epoch
            if at_end and (self.step == self.total or epoch % options.val_check_interval == 0):
                latest = self._validate()
                report(latest)
                if options.early_stop.patience and self.waited >= options.early_stop.patience:
                    reason = "early stop"
            elif self.step % options.log_interval == 0:
                report(self._report())
            if self.group.agrees(stop, self.step) and reason == "finished" and self.step < self.total:
                reason = "interrupted"
            if at_end:
                self.sums[:] = 0
            saves = (
                self.step % options.save_steps == 0
                if options.save_steps
                else at_end and options.save_interval and epoch % options.save_interval == 0
            )
            if saves or reason != "finished" or self.step == self.total:
                self._save()
        if self.best is None:  # interrupted before the first validation
            self.best = self._report()
            self.keep(self.best)
        return SftResult(self.step, reason, self.best, self.history)

    def _batch(self, step: int) -> list[np.ndarray]:
        """The micro-batches of a step: indices of windows."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = np.random.default_rng((self.options.seed, epoch)).permutation(len(self.train))
        size, part = self.options.global_batch_size, self.options.micro_batch_size
        mine = order[place * size : (place + 1) * size]
        return [mine[start : start + part] for start in range(0, len(mine), part)]

    def _learn(self, chunks: list[np.ndarray]) -> None:
        options, group, count = self.options, self.group, sum(map(len, chunks))
        rate = options.lr * factor(self.step, self.total, schedule=options.schedule, warmup_steps=self.warmup)
        for each in self.optimizer.param_groups:
            each["lr"] = rate
        self.model.net.train()
        for parameter in self.learning.values():
            parameter.grad = None
        for number in range(group.rank, len(chunks), group.world):
            loss = self._loss(chunks[number], number)
            torch.autograd.backward(loss.sum() / count)
            self.sums += float(loss.detach().sum()), len(chunks[number])
        for parameter in self.learning.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        group.sum_([parameter.grad for parameter in self.learning.values() if parameter.grad is not None])
        norm = nn.utils.clip_grad_norm_(list(self.learning.values()), options.clip_grad or math.inf)
        if not math.isfinite(float(norm)):
            raise RefereeError(
                f"the loss or its gradient is not a number at step {self.step}: lower lr ({options.lr:g})"
            )
        self.optimizer.step()
        self.step += 1

    def _loss(self, indices: np.ndarray, number: int) -> Tensor:
        """f32[n] of one micro-batch."""
        key = (self.options.seed, self.step, number)
        random = np.random.default_rng(key)
        seed_dropout(int(np.random.default_rng((*key, 1)).integers(2**62)))
        some = [(self.train[index].window(), self.train[index].label) for index in indices]
        if self.options.random_reverse:
            some = reversed_some(some, random)
        prompts = [self.builder(shift_window(window, self.options.random_shift, random)) for window, _ in some]
        batch = self.model.encoder.encode(prompts, [label for _, label in some])
        return batch_loss(self.model.net, batch.to(self.model.device))

    def _validate(self) -> SftReport:
        scores = None
        if self.val:
            self.model.net.eval()
            said = judge_segments(
                self.model, self.val, self.builder, size=self.options.eval_batch_size, group=self.group
            )
            scores = TrendScores.of([each.label for each in self.val], said)
        latest = self._report(scores)
        if self.best is None or _merit(latest) > _merit(self.best):
            latest = replace(latest, best=True)
            self.best = latest
            self.keep(latest)
        merit = _merit(latest)[0]
        self.waited = 0 if merit > self.mark + self.options.early_stop.min_delta else self.waited + 1
        self.mark = merit if self.waited == 0 else self.mark
        self.history.append(latest)
        return latest

    def _report(self, scores: TrendScores | None = None) -> SftReport:
        loss, windows = self.group.sum(self.sums)
        rate = float(self.optimizer.param_groups[0]["lr"])
        mean = float(loss / max(windows, 1))
        return SftReport(self.step, self.total, self.step / self.steps_per_epoch, rate, mean, self.seconds, scores)

    def _save(self) -> Path:
        """A checkpoint; every process takes part in the sums, the first one writes."""
        path = self.options.output / "checkpoints" / f"step_{self.step}" / checkpoint.NAME
        sums = self.group.sum(self.sums)
        values = {
            "epoch": self.step // self.steps_per_epoch,
            "model_state_dict": {name: each.detach().cpu() for name, each in self.learning.items()},
            "optimizer_state_dict": self.optimizer.state_dict(),
            "train_loss": float(sums[0] / max(sums[1], 1)),
            "train_acc": math.nan,
            "step": self.step,
            "seconds": self.seconds,
            "sums": sums.tolist(),
            "waited": self.waited,
            "mark": self.mark,
            "best": None if self.best is None else _plain(self.best),
            "history": [_plain(each) for each in self.history],
            "data": [digest(self.train), self.steps_per_epoch, self.total],
        }
        if self.group.rank == 0:
            checkpoint.save(path, values)
        self.group.barrier()
        return path

    def restore(self, values: dict[str, Any]) -> None:
        """Go on from what `checkpoint.load` gave."""
        if "sums" not in values or "data" not in values:
            raise RefereeError("the checkpoint is none of a fine-tuning: give one of its own with runner.resume_dir")
        if values["data"] != [digest(self.train), self.steps_per_epoch, self.total]:
            raise RefereeError("the checkpoint is of other windows, batches or epochs: resume with the same ones")
        state = values["model_state_dict"]
        if {name: tuple(each.shape) for name, each in state.items()} != {
            name: tuple(each.shape) for name, each in self.learning.items()
        }:
            raise RefereeError("the checkpoint is of another model or adapter: resume with the same one")
        with torch.no_grad():
            for name, parameter in self.learning.items():
                parameter.copy_(state[name])
        self.optimizer.load_state_dict(values["optimizer_state_dict"])
        self.step, self.seconds = values["step"], values["seconds"]
        if self.step % self.steps_per_epoch and self.group.rank == 0:
            self.sums = np.array(values["sums"])
        self.waited, self.mark = values["waited"], values["mark"]
        self.best = None if values["best"] is None else _report_from(values["best"])
        self.history = [_report_from(each) for each in values["history"]]


def _merit(report: SftReport) -> tuple[float, float]:
    """Larger is better; the loss decides between equals."""
    if report.val is None:
        return -report.train_loss, 0.0
    return report.val.merit, -report.val.loss


def _spread(segments: Sequence[Segment], count: int) -> list[Segment]:
    """So many of them, evenly spaced; 0 = all."""
    if not count or count >= len(segments):
        return list(segments)
    return [segments[place] for place in np.linspace(0, len(segments) - 1, count).round().astype(int)]


def _plain(report: SftReport) -> dict[str, Any]:
    found = asdict(replace(report, val=None))
    return {**found, "val": None if report.val is None else report.val.to_json()}


def _report_from(values: dict[str, Any]) -> SftReport:
    val = values["val"]
    return SftReport(**{**values, "val": None if val is None else TrendScores.from_json(val)})


def _ignore(*_: Any) -> None:
    pass


def _never() -> bool:
    return False
