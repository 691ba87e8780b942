"""What accompanies a fine-tuning: reports, the best validation kept, early stop, checkpoints and an exact way back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import TrainerCallback
from transformers.trainer_callback import TrainerControl, TrainerState

from referee.errors import RefereeError
from referee.training import checkpoint
from referee.training.parallel import Group
from referee.training.vlm.report import SftReport, SftResult
from referee.training.vlm.scores import TrendScores
from referee.training.vlm.segments import Segment, digest
from referee.training.vlm.settings import FineTuning


class Progress(TrainerCallback):  # type: ignore[misc]
    """Reports, the best validation, early stop, checkpoints, and the wish to stop."""

    def __init__(
        self,
        settings: FineTuning,
        segments: Sequence[Segment],
        learning: dict[str, nn.Parameter],
        group: Group,
        keep: Callable[[SftReport], None],
    ) -> None:
        """learning: the parameters that learn. keep: saves the model, when a validation is the best so far."""
        self.settings, self.learning, self.group, self._keep = settings, learning, group, keep
        self.steps_per_epoch = -(-len(segments) // settings.actor.global_batch_size)
        self.total = self.steps_per_epoch * settings.epochs
        self.data = [digest(segments), self.steps_per_epoch, self.total]
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
        self._optimizer = has["optimizer"]
        if self._moments:
            self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": self._moments})
            self._moments = {}

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **has: Any) -> None:
        """An epoch's sums begin with it."""
        if state.global_step % self.steps_per_epoch == 0:
            self.sums[:] = 0
        self.rate = float(self._optimizer.param_groups[0]["lr"])

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
            "optimizer_state_dict": self._optimizer.state_dict(),
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
