"""The loop of a fine-tuning: transformers' Trainer with our windows, loss, validation, checkpoints and way back."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback, TrainerControl, TrainerState

from referee.errors import RefereeError
from referee.models.vlm.qwen import Qwen
from referee.training import checkpoint
from referee.training.crew import seed_dropout
from referee.training.parallel import Group
from referee.training.schedule import factor
from referee.training.vlm.batches import MicroBatchSampler, answer_loss, loader, score_segments
from referee.training.vlm.report import SftReport, SftResult
from referee.training.vlm.scores import TrendScores
from referee.training.vlm.segments import Segment, digest
from referee.training.vlm.settings import FineTuning

STATE = "trainer_state.json"
"""The file from which the Trainer learns at which step it goes on."""


class TrendTrainer(Trainer):  # type: ignore[misc]  # mypy does not follow the library
    """Trainer: what a step learns from, its loss, and what a validation is."""

    control: TrainerControl

    def __init__(
        self,
        model: Qwen,
        train: Sequence[Segment],
        val: Sequence[Segment],
        settings: FineTuning,
        *,
        group: Group | None = None,
        keep: Callable[[SftReport], None] | None = None,
    ) -> None:
        """keep: called when a validation is the best so far, to save the model."""
        self.qwen, self.segments, self.settings, self.group = model, train, settings, group or Group()
        self.val = _spread(val, settings.data.max_val_windows)
        self.learning = {name: each for name, each in model.net.named_parameters() if each.requires_grad}
        if not self.learning:
            raise RefereeError("nothing in the model can learn: all of its parameters are frozen")
        self.sampler = MicroBatchSampler(len(train), settings, self.group, lambda: self.state.global_step)
        self.progress = Progress(self, keep or _ignore)
        super().__init__(
            model.net, self._arguments(), compute_loss_func=answer_loss, callbacks=[self.progress],
        )  # fmt: skip
        self.remove_callback(PrinterCallback)

    def _arguments(self) -> TrainingArguments:
        actor = self.settings.actor
        on_cpu = not torch.cuda.is_available()
        arguments = TrainingArguments(
            output_dir=str(self.settings.output / "checkpoints"),
            per_device_train_batch_size=actor.micro_batch_size,
            gradient_accumulation_steps=actor.global_batch_size // (actor.micro_batch_size * self.group.world),
            num_train_epochs=self.settings.epochs,
            learning_rate=actor.optim.lr,
            weight_decay=actor.optim.weight_decay,
            max_grad_norm=actor.optim.clip_grad,
            optim="adamw_torch_fused",
            gradient_checkpointing=actor.model.gradient_checkpointing,
            gradient_checkpointing_kwargs={"use_reentrant": False},
            seed=self.settings.runner.seed % 2**32,
            use_cpu=on_cpu,
            ddp_find_unused_parameters=not self._shows_pictures(),
            ddp_backend="gloo" if on_cpu and self.group.world > 1 else None,
            use_cache=bool(getattr(self.qwen.net.config, "use_cache", True)),
            logging_strategy="no", save_strategy="no", eval_strategy="no", report_to="none", disable_tqdm=True,
            logging_nan_inf_filter=False, log_level="error", log_level_replica="error",
        )  # fmt: skip
        if self.group.world == 1:
            arguments._n_gpu = min(1, arguments.n_gpu)  # DataParallel would cut pictures apart
        return arguments

    def _shows_pictures(self) -> bool:
        """Whether the part of the model that sees has something to do; all of the model learns then."""
        prompt = self.settings.builder()(self.segments[0].window())
        return any(isinstance(part, np.ndarray) for part in prompt.parts)

    def fit(
        self,
        report: Callable[[SftReport], None] | None = None,
        stop: Callable[[], bool] | None = None,
        began: float | None = None,
    ) -> SftResult:
        """Train to the end, to an early stop, or until `stop` says yes.

        began: when the work began, on the clock of `time.time`, where the seconds before the first step count as well.
        """
        progress = self.progress
        progress.begin(report or _ignore, stop or _never, began)
        if not progress.step:
            self.train()
        else:
            with tempfile.TemporaryDirectory(prefix="referee-resume-") as folder:
                state = TrainerState(global_step=progress.step, train_batch_size=self.args.per_device_train_batch_size)
                state.save_to_json(str(Path(folder) / STATE))
                self.train(resume_from_checkpoint=folder)
        return progress.end()

    def restore(self, values: dict[str, Any]) -> None:
        """Go on from what `checkpoint.load` gave."""
        self.progress.restore(values)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Nothing: `restore` has brought back the weights, and the optimiser's state follows once it is made."""

    def get_train_dataloader(self) -> Any:
        """See Trainer; every process has its own micro-batches."""
        return loader(self.segments, self.qwen.encoder, self.settings, self.sampler)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """See Trainer: this micro-batch's share of the step's mean over windows."""
        seed_dropout(inputs.pop("dropout_seed"))
        answers, weight = inputs.pop("answers"), inputs.pop("weight")
        outputs = model(**inputs)
        losses: Tensor = answer_loss(outputs.logits, answers)
        if weight:
            self.progress.sums += float(losses.detach().sum()), len(losses)
        loss = losses.sum() * (weight * self.group.world)  # the gradients are averaged over the processes
        return (loss, outputs) if return_outputs else loss

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """See Trainer: biases and the parameters of normalisation layers do not decay."""
        return [name for name, each in model.named_parameters() if each.ndim > 1]

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """See Trainer; it begins at the step that is gone on from."""
        optim, first = self.settings.actor.optim, self.progress.step
        warmup = round(optim.warmup_ratio * num_training_steps)

        def rate(done: int) -> float:
            return factor(first + done, num_training_steps, schedule=optim.schedule, warmup_steps=warmup)

        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, rate)
        return self.lr_scheduler

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """See Trainer: the scores of the validation windows."""
        actor, scores = self.settings.actor, None
        if self.val:
            self.qwen.net.eval()
            builder, size = self.settings.builder(), actor.eval_batch_size
            probabilities = score_segments(self.qwen, self.val, builder, size=size, group=self.group)
            scores = TrendScores.of([each.label for each in self.val], probabilities)
        self.progress.scores = scores
        metrics = {} if scores is None else {f"eval_{name}": value for name, value in scores.numbers().items()}
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


class Progress(TrainerCallback):  # type: ignore[misc]
    """Reports, the best validation, early stop, checkpoints, and the wish to stop."""

    def __init__(self, trainer: TrendTrainer, keep: Callable[[SftReport], None]) -> None:
        self._trainer, self._keep = trainer, keep
        self.settings, self.group, self.learning = trainer.settings, trainer.group, trainer.learning
        self.steps_per_epoch = trainer.sampler.steps_per_epoch
        self.total = self.steps_per_epoch * self.settings.epochs
        self.data = [digest(trainer.segments), self.steps_per_epoch, self.total]
        self.step, self.seconds, self.reason = 0, 0.0, "finished"
        self.sums = np.zeros(2)
        """Loss and windows of this epoch so far."""
        self.rate = 0.0
        self.scores: TrendScores | None = None
        """Of the validation that has just been."""
        self.history: list[SftReport] = []
        self.best: SftReport | None = None
        self.waited, self.mark = 0, -math.inf
        """Validations since the last one that counted as better, and how good that was."""
        self._moments: dict[int, Any] = {}

    def begin(self, report: Callable[[SftReport], None], stop: Callable[[], bool], began: float | None) -> None:
        """Who hears reports, and who may stop it."""
        self._report, self._stop, self.reason = report, stop, "finished"
        self.seconds += 0.0 if began is None else max(0.0, time.time() - began)
        self._started = time.perf_counter() - self.seconds

    def end(self) -> SftResult:
        """What became of it."""
        if self.best is None:  # interrupted before the first validation
            self.best = self._now()
            self._keep(self.best)
        return SftResult(self.step, self.reason, self.best, self.history)

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **has: Any) -> None:
        """Bring back the optimiser's state."""
        optimizer = has["optimizer"]
        if self._moments:
            optimizer.load_state_dict({**optimizer.state_dict(), "state": self._moments})
            self._moments = {}

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **has: Any) -> None:
        """An epoch's sums begin with it."""
        if state.global_step % self.steps_per_epoch == 0:
            self.sums[:] = 0
        self.rate = float(has["optimizer"].param_groups[0]["lr"])

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **has: Any) -> None:
        """Nothing may be learned from what is not a number."""
        gradients = [each.grad for each in self.learning.values() if each.grad is not None]
        if not math.isfinite(float(nn.utils.get_total_norm(gradients))):
            raise RefereeError(
                f"the loss or its gradient is not a number at step {state.global_step}: lower lr "
                f"({self.settings.actor.optim.lr:g})"
            )

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **has: Any) -> None:
        """Report, validate, save or stop, where it is time to."""
        self.step, self.seconds = state.global_step, time.perf_counter() - self._started
        epoch, place = divmod(self.step, self.steps_per_epoch)
        if self.group.agrees(self._stop, self.step) and self.step < self.total:
            self.reason, control.should_training_stop = "interrupted", True
        if place == 0 and (self.step == self.total or epoch % self.settings.runner.val_check_interval == 0):
            control.should_evaluate = True  # and then on_evaluate
            return
        if self.step % self.settings.runner.log_interval == 0:
            self._report(self._now())
        self._save_if_due()

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **has: Any) -> None:
        """Keep the best, and give up where none has been better for long."""
        latest, stopping = self._now(self.scores), self.settings.runner.early_stop
        if self.best is None or latest.merit > self.best.merit:
            latest = self.best = replace(latest, best=True)
            self._keep(latest)
        merit = latest.merit[0]
        self.waited = 0 if merit > self.mark + stopping.min_delta else self.waited + 1
        self.mark = merit if self.waited == 0 else self.mark
        self.history.append(latest)
        self._report(latest)
        if stopping.patience and self.waited >= stopping.patience:
            self.reason, control.should_training_stop = "early stop", True
        self._save_if_due()

    def _now(self, scores: TrendScores | None = None) -> SftReport:
        loss, windows = self.group.sum(self.sums)
        epoch, mean = self.step / self.steps_per_epoch, float(loss / max(windows, 1))
        return SftReport(self.step, self.total, epoch, self.rate, mean, self.seconds, scores)

    def _save_if_due(self) -> None:
        runner, (epoch, place) = self.settings.runner, divmod(self.step, self.steps_per_epoch)
        by_steps = runner.save_steps and self.step % runner.save_steps == 0
        by_epochs = not runner.save_steps and place == 0 and runner.save_interval and epoch % runner.save_interval == 0
        if by_steps or by_epochs or self.reason != "finished" or self.step == self.total:
            self._save()

    def _save(self) -> None:
        """A checkpoint; every process takes part in the sums, the first one writes."""
        path = self.settings.output / "checkpoints" / f"step_{self.step}" / checkpoint.NAME
        sums = self.group.sum(self.sums)
        values = {
            "epoch": self.step // self.steps_per_epoch,
            "model_state_dict": {name: each.detach().cpu() for name, each in self.learning.items()},
            "optimizer_state_dict": self._trainer.optimizer.state_dict(),
            "train_loss": float(sums[0] / max(sums[1], 1)),
            "train_acc": math.nan,
            "step": self.step,
            "seconds": self.seconds,
            "sums": sums.tolist(),
            "waited": self.waited,
            "mark": self.mark,
            "best": None if self.best is None else self.best.to_json(),
            "history": [each.to_json() for each in self.history],
            "data": self.data,
        }
        if self.group.rank == 0:
            checkpoint.save(path, values)
        self.group.barrier()

    def restore(self, values: dict[str, Any]) -> None:
        """The inverse, but for the optimiser's state, which waits until there is an optimiser."""
        if "sums" not in values or "data" not in values:
            raise RefereeError("the checkpoint is none of a fine-tuning: give one of its own with runner.resume_dir")
        if values["data"] != self.data:
            raise RefereeError("the checkpoint is of other windows, batches or epochs: resume with the same ones")
        state = values["model_state_dict"]
        if {name: each.shape for name, each in state.items()} != {n: each.shape for n, each in self.learning.items()}:
            raise RefereeError("the checkpoint is of another model or adapter: resume with the same one")
        with torch.no_grad():
            for name, parameter in self.learning.items():
                parameter.copy_(state[name])
        self._moments = values["optimizer_state_dict"]["state"]
        self.step, self.seconds = values["step"], values["seconds"]
        if self.step % self.steps_per_epoch and self.group.rank == 0:
            self.sums = np.array(values["sums"])
        self.waited, self.mark = values["waited"], values["mark"]
        self.best = None if values["best"] is None else SftReport.from_json(values["best"])
        self.history = [SftReport.from_json(each) for each in values["history"]]


def _spread(segments: Sequence[Segment], count: int) -> list[Segment]:
    """So many of them, evenly spaced; 0 = all."""
    if not count or count >= len(segments):
        return list(segments)
    return [segments[place] for place in np.linspace(0, len(segments) - 1, count).round().astype(int)]


def _ignore(*_: Any) -> None:
    pass


def _never() -> bool:
    return False
