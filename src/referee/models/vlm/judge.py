"""Qwen3-VL as a judge of windows: it writes its answer, or the label words' probabilities are compared in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from referee.datasets.windows import LABELS, REVERSED
from referee.models.vlm.answers import Answers
from referee.models.vlm.encode import Batch
from referee.models.vlm.parsers import RewardParser, make_reward_parser
from referee.models.vlm.prompts import InputBuilder, make_input_builder
from referee.models.vlm.qwen import Qwen, transformers
from referee.models.window import Window

BACKWARDS = [LABELS.index(REVERSED[label]) for label in LABELS]
"""Where the probability of each label stands in an answer about the same window backwards."""


@dataclass(frozen=True, kw_only=True)
class ReadOut:
    """How an answer is taken from the model."""

    readout: str = "generate"
    """`generate`: it writes a text. `score`: the label words' probabilities, nothing is written."""
    score_pay: str = "likeliest"
    """Of `score`: what the likeliest word pays, or what is `expected` of all three by their probabilities."""
    both_ways: bool = False
    """Of `score`: ask about every window backwards, too, and take the mean. A rise is a fall then; what stands still
    is as likely either, so with pays of 1 and -1 by `expected` it earns nothing, and no way there and back does."""
    infer_micro_batch_size: int = 64
    max_new_tokens: int = 16
    do_sample: bool = False
    temperature: float = 0.0


class HistoryVLMRewardModel:
    """Judges windows of several frames."""

    def __init__(
        self,
        model: Qwen,
        builder: InputBuilder | None = None,
        parser: RewardParser | None = None,
        how: ReadOut | None = None,
    ) -> None:
        self.model = model
        self.builder = builder or make_input_builder()
        self.parser = parser or make_reward_parser()
        self.how = how or ReadOut()

    def judge(self, windows: Sequence[Window]) -> Answers:
        """One answer per window, in micro-batches."""
        size = self.how.infer_micro_batch_size
        parts = [self._judge(windows[start : start + size]) for start in range(0, len(windows), size)]
        return Answers.join(parts)

    def _judge(self, windows: Sequence[Window]) -> Answers:
        if self.how.readout == "generate":
            return Answers.read(generate(self.model, self._batch(windows), self.how), self.parser)
        words, chances = self.parser.words, self._chances(windows)
        if self.how.both_ways:
            chances = (chances + self._chances([each.backwards() for each in windows])[:, BACKWARDS]) / 2
        answers = Answers.read([words[best] for best in chances.argmax(1)], self.parser, chances)
        return answers.expected(self.parser, words) if self.how.score_pay == "expected" else answers

    def _batch(self, windows: Sequence[Window]) -> Batch:
        return self.model.encoder.encode([self.builder(window) for window in windows]).to(self.model.device)

    def _chances(self, windows: Sequence[Window]) -> np.ndarray:
        """f32[n,3]: the probability of each label word."""
        logs = score(self.model, self._batch(windows), self.parser.words)
        return torch.softmax(logs, 1).cpu().numpy().astype(np.float32)


class VLMRewardModel(HistoryVLMRewardModel):
    """Judges the current observation alone: the last frame of each window."""

    def judge(self, windows: Sequence[Window]) -> Answers:
        """One answer per window, from its last frame."""
        return super().judge(
            [Window({name: value[-1:] for name, value in each.frames.items()}, each.task) for each in windows]
        )


@torch.no_grad()
def generate(model: Qwen, batch: Batch, how: ReadOut) -> list[str]:
    """What the model writes."""
    drawn = {"do_sample": True, "temperature": how.temperature or 1.0} if how.do_sample else {"do_sample": False}
    chosen = transformers().GenerationConfig(
        max_new_tokens=how.max_new_tokens, pad_token_id=model.encoder.pad_id, eos_token_id=model.encoder.end_id, **drawn
    )
    written = model.net.generate(**batch.inputs, generation_config=chosen)
    new = written[:, batch.inputs["input_ids"].shape[1] :]
    return [text.strip() for text in model.encoder.tokenizer.batch_decode(new, skip_special_tokens=True)]


@torch.no_grad()
def score(model: Qwen, batch: Batch, words: Sequence[str]) -> Tensor:
    """f32[n,w]: the log-probability of each word as the beginning of the answer.

    One pass over the prompts gives all words of one token; further tokens of longer words go on from its cache.
    """
    tokens = [model.encoder.word_tokens(word) for word in words]
    longer = any(len(each) > 1 for each in tokens)
    said = model.net(**batch.inputs, use_cache=longer, logits_to_keep=1)
    first = torch.log_softmax(said.logits[:, -1].float(), 1)
    found = torch.stack([first[:, each[0]] for each in tokens], 1)
    if not longer:
        return found
    cache, mask = said.past_key_values, batch.inputs["attention_mask"]
    # i64[n,1]: pictures take fewer positions than tokens
    shift = next(each.rope_deltas for each in model.net.modules() if hasattr(each, "rope_deltas"))
    for number, each in enumerate(tokens):
        if len(each) < 2:
            continue
        before = torch.tensor(each[:-1], device=mask.device).expand(len(mask), -1)
        more = torch.cat([mask, torch.ones_like(before)], 1)
        places = mask.sum(1, keepdim=True) + shift + torch.arange(before.shape[1], device=mask.device)
        goes_on = model.net(
            input_ids=before,
            attention_mask=more,
            position_ids=places.expand(3, -1, -1),
            past_key_values=cache,
            use_cache=True,
        )
        later = torch.log_softmax(goes_on.logits.float(), 2)
        after = torch.tensor(each[1:], device=mask.device).expand(len(mask), -1)
        found[:, number] += later.gather(2, after[..., None])[..., 0].sum(1)
        cache.crop(-before.shape[1])
    return found
