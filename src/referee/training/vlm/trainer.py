"""The loop of a fine-tuning: transformers' Trainer with our windows, loss, validation, checkpoints and way back."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback, TrainerControl, TrainerState

from referee.errors import RefereeError
from referee.models.vlm.qwen import Qwen
from referee.training.crew import seed_dropout
from referee.training.parallel import Group
from referee.training.schedule import factor
from referee.training.vlm.batches import MicroBatchSampler, answer_loss, loader, score_segments
from referee.training.vlm.progress import Progress
from referee.training.vlm.report import SftReport, SftResult
from referee.training.vlm.scores import TrendScores
from referee.training.vlm.segments import Segment
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
        self.progress = Progress(settings, train, self.learning, self.group, keep or _ignore)
        config = model.net.config
        told = hasattr(config, "use_cache")
        super().__init__(model.net, self._arguments(), compute_loss_func=answer_loss, callbacks=[self.progress])
        self.remove_callback(PrinterCallback)
        if not told:
            del config.use_cache  # it is saved with the weights

    def _arguments(self) -> TrainingArguments:
        actor, gpus = self.settings.actor, torch.cuda.device_count()
        if 0 < gpus < self.group.world:
            raise RefereeError(f"actor.num_processes is {self.group.world}, but there are {gpus} GPUs: one each")
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
            use_cpu=not gpus,
            ddp_find_unused_parameters=not self._shows_pictures(),
            ddp_backend=None if gpus or self.group.world == 1 else "gloo",
            use_cache=getattr(self.qwen.net.config, "use_cache", True),
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

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """See Trainer: nobody asks for them, and counting takes a pass over all parameters per micro-batch."""
        return 0

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


def _spread(segments: Sequence[Segment], count: int) -> list[Segment]:
    """So many of them, evenly spaced; 0 = all."""
    if not count or count >= len(segments):
        return list(segments)
    return [segments[place] for place in np.linspace(0, len(segments) - 1, count).round().astype(int)]


def _ignore(*_: Any) -> None:
    pass


def _never() -> bool:
    return False
