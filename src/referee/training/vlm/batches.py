"""The micro-batches of a fine-tuning: which windows each has, how they are changed, and the loss of their answers.

All that is random is drawn from (seed, step, micro-batch): a resumed run, and one in several processes, see the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from referee.datasets.windows import LABELS, REVERSED
from referee.models.vlm.encode import IGNORED, Batch, Encoder
from referee.models.vlm.judge import score
from referee.models.vlm.qwen import Qwen
from referee.models.window import Window
from referee.training.augment import shifted
from referee.training.parallel import Group
from referee.training.vlm.segments import Segment
from referee.training.vlm.settings import FineTuning

Inputs = dict[str, Any]
"""What the network takes, and what the loss needs beside it: `answers`, `weight` and `dropout_seed`."""


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """A part of a step."""

    step: int
    number: int
    indices: np.ndarray
    """Of the training windows."""
    weight: float
    """Of each window in the step's loss."""


class MicroBatchSampler(Sampler[list[MicroBatch]]):
    """The micro-batches that this process has of an epoch; every process has as many."""

    def __init__(self, windows: int, settings: FineTuning, group: Group, step: Callable[[], int]) -> None:
        """step: steps done so far; an epoch is iterated over from its beginning."""
        self._windows, self._group, self._step = windows, group, step
        self._seed = settings.runner.seed
        self._size, self._part = settings.actor.global_batch_size, settings.actor.micro_batch_size
        self.steps_per_epoch = -(-windows // self._size)

    def __iter__(self) -> Iterator[list[MicroBatch]]:
        epoch = self._step() // self.steps_per_epoch
        order = np.random.default_rng((self._seed, epoch)).permutation(self._windows)
        for place in range(self.steps_per_epoch):
            chosen = order[place * self._size : (place + 1) * self._size]
            yield from ([each] for each in self._share(epoch * self.steps_per_epoch + place, chosen))

    def __len__(self) -> int:
        whole, rest = divmod(self._windows, self._size)
        return whole * self._count(self._size) + self._count(rest)

    def _count(self, windows: int) -> int:
        """Micro-batches that each process has of so many windows."""
        return -(-windows // (self._part * self._group.world))

    def _share(self, step: int, chosen: np.ndarray) -> Iterator[MicroBatch]:
        for number in range(self._group.rank, self._count(len(chosen)) * self._group.world, self._group.world):
            indices = chosen[number * self._part : (number + 1) * self._part]
            if len(indices):
                yield MicroBatch(step, number, indices, 1 / len(chosen))
            else:  # the others have one more
                yield MicroBatch(step, number, chosen[:1], 0.0)


class MicroBatches(Dataset[Inputs]):
    """Reads, changes and encodes the windows of a micro-batch."""

    def __init__(self, segments: Sequence[Segment], encoder: Encoder, settings: FineTuning) -> None:
        self._segments, self._encoder, self._settings = segments, encoder, settings
        self._builder = settings.builder()

    def __len__(self) -> int:
        """Windows of an epoch."""
        return len(self._segments)

    def __getitem__(self, which: MicroBatch) -> Inputs:
        actor, key = self._settings.actor, (self._settings.runner.seed, which.step, which.number)
        random = np.random.default_rng(key)
        some = [(self._segments[index].window(), self._segments[index].label) for index in which.indices]
        if actor.random_reverse:
            some = reversed_some(some, random)
        prompts = [self._builder(shift_window(window, actor.random_shift, random)) for window, _ in some]
        batch = self._encoder.encode(prompts, [label for _, label in some])
        seed = int(np.random.default_rng((*key, 1)).integers(2**62))
        return {**answer_inputs(batch), "weight": which.weight, "dropout_seed": seed}


def loader(segments: Sequence[Segment], encoder: Encoder, settings: FineTuning, sampler: MicroBatchSampler) -> Any:
    """Yields the inputs of one micro-batch after the other."""
    return DataLoader(MicroBatches(segments, encoder, settings), batch_sampler=sampler, collate_fn=_only)


def _only(some: list[Inputs]) -> Inputs:
    (inputs,) = some
    return inputs


def answer_inputs(batch: Batch) -> Inputs:
    """What the network takes to compute the last logits alone, where the answers are; and these as `answers`."""
    assert batch.labels is not None
    longest = int((batch.labels != IGNORED).sum(1).max())
    return {**batch.inputs, "logits_to_keep": longest + 1, "answers": batch.labels[:, -(longest + 1) :]}


def answer_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """f32[n]: mean cross-entropy of each row's answer tokens.

    logits: f32[n,t,v], what is expected after each token; labels: i64[n,t], what the token itself is, or IGNORED.
    """
    expected, true = logits[:, :-1].float(), labels[:, 1:]
    losses = nn.functional.cross_entropy(expected.transpose(1, 2), true, ignore_index=IGNORED, reduction="none")
    taught = true != IGNORED
    return (losses * taught).sum(1) / taught.sum(1).clamp(min=1)


def score_segments(
    model: Qwen, segments: Sequence[Segment], builder: Callable[[Window], Any], *, size: int, group: Group | None = None
) -> np.ndarray:
    """f32[n,3]: the probabilities of the labels, shared out over the processes."""
    group = group or Group()
    probabilities = np.zeros((len(segments), len(LABELS)), np.float64)
    for number, start in enumerate(range(0, len(segments), size)):
        if number % group.world != group.rank:
            continue
        prompts = [builder(each.window()) for each in segments[start : start + size]]
        logs = score(model, model.encoder.encode(prompts).to(model.device), LABELS)
        probabilities[start : start + size] = torch.softmax(logs.double(), 1).cpu().numpy()
    return group.sum(probabilities).astype(np.float32)


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
