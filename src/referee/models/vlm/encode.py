"""From prompts to the tensors that a Qwen3-VL takes: one way for training, audit and online use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from referee.errors import RefereeError
from referee.models.vlm.prompts import Prompt

IMAGE, START, END = "<|image_pad|>", "<|vision_start|>", "<|vision_end|>"
TURN_END = "<|im_end|>"
IGNORED = -100
"""The label of tokens that teach nothing."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Some prompts, padded on the left so that all end at the same place; answers may follow them."""

    inputs: dict[str, Tensor]
    """What the model's forward takes: input_ids i64[n,t], attention_mask, mm_token_type_ids, pixel_values, …"""
    labels: Tensor | None = None
    """i64[n,t]: the answers' own tokens, IGNORED elsewhere; None without answers."""

    def to(self, device: torch.device | str) -> Batch:
        """The same on another device."""
        labels = None if self.labels is None else self.labels.to(device)
        return Batch({name: value.to(device) for name, value in self.inputs.items()}, labels)


class Encoder:
    """A tokenizer and an image processor, and the model's own chat format."""

    def __init__(self, tokenizer: Any, images: Any, *, chat: bool = True) -> None:
        """chat: ask as a user in the chat format of the tokenizer, else in plain text."""
        self.tokenizer, self.images, self.chat = tokenizer, images, chat
        if chat and not tokenizer.chat_template:
            raise RefereeError("the tokenizer has no chat template: set use_chat_template=false")
        self.image_id = self._one_token(IMAGE)
        self.end_id = self._one_token(TURN_END) if chat else int(tokenizer.eos_token_id)
        pad = tokenizer.pad_token_id
        self.pad_id = int(self.end_id if pad is None else pad)

    def _one_token(self, text: str) -> int:
        found = self.tokenizer.convert_tokens_to_ids(text)
        if found is None or found == self.tokenizer.unk_token_id:
            raise RefereeError(f"the tokenizer does not know {text}: it is not one of a Qwen3-VL")
        return int(found)

    def encode(self, prompts: Sequence[Prompt], answers: Sequence[str] | None = None) -> Batch:
        """Tensors of some prompts; with answers, these follow, and are all that has labels."""
        pixels, grids = self._pixels([image for prompt in prompts for image in prompt.images])
        merged = self.images.merge_size**2
        counts = iter((grids.prod(1) // merged).tolist())
        rows = []
        for prompt in prompts:
            rows.append(self._tokens(prompt, [next(counts) for _ in prompt.images]))
        tails = [self.answer_tokens(answer) for answer in answers] if answers is not None else [[] for _ in rows]
        full = [row + tail for row, tail in zip(rows, tails, strict=True)]
        length = max(map(len, full))
        ids = np.full((len(full), length), self.pad_id, np.int64)
        mask, labels = np.zeros_like(ids), np.full_like(ids, IGNORED)
        for number, (tokens, tail) in enumerate(zip(full, tails, strict=True)):
            ids[number, length - len(tokens) :] = tokens
            mask[number, length - len(tokens) :] = 1
            if tail:
                labels[number, length - len(tail) :] = tail
        inputs = {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask),
            "mm_token_type_ids": torch.from_numpy(((ids == self.image_id) & (mask == 1)).astype(np.int32)),
        }
        if len(grids):
            inputs |= {"pixel_values": torch.from_numpy(pixels), "image_grid_thw": torch.from_numpy(grids)}
        return Batch(inputs, torch.from_numpy(labels) if answers is not None else None)

    def answer_tokens(self, answer: str) -> list[int]:
        """An answer as the model is to write it: its words, and the end of its turn."""
        return [*self.word_tokens(answer), self.end_id]

    def word_tokens(self, word: str) -> list[int]:
        """A word at the beginning of an answer."""
        return list(self.tokenizer.encode(word, add_special_tokens=False))

    def _tokens(self, prompt: Prompt, counts: Sequence[int]) -> list[int]:
        """The tokens of one prompt; a picture is as many tokens as the model has features of it."""
        text = self._text(prompt)
        pieces = text.split(IMAGE)
        if len(pieces) != len(counts) + 1:
            raise RefereeError(
                f"a prompt with {len(counts)} pictures has {len(pieces) - 1} places for them: "
                f"its text, or the task's description, must not hold {IMAGE}"
            )
        joined = "".join(piece + IMAGE * count for piece, count in zip(pieces, [*counts, 0], strict=True))
        return list(self.tokenizer.encode(joined, add_special_tokens=False))

    def _text(self, prompt: Prompt) -> str:
        if not self.chat:
            shown = [part if isinstance(part, str) else START + IMAGE + END for part in prompt.parts]
            return "".join([prompt.system, *shown])
        content = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in prompt.parts
        ]
        messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
        if prompt.system:
            messages.insert(0, {"role": "system", "content": [{"type": "text", "text": prompt.system}]})
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def _pixels(self, images: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Patches f32[p,d] and grids i64[n,3]; pictures that need no scaling take a shorter way to the same numbers."""
        if not images:
            return np.empty((0, 0), np.float32), np.empty((0, 3), np.int64)
        quick = self._patches(images)
        if quick is not None:
            return quick
        found = self.images(list(images), return_tensors="np", input_data_format="channels_last")
        return np.asarray(found["pixel_values"], np.float32), np.asarray(found["image_grid_thw"], np.int64)

    def _patches(self, images: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray] | None:
        """The same for pictures of one size that the processor would leave as they are, all at once."""
        made, shape = self.images, images[0].shape
        patch, merge = made.patch_size, made.merge_size
        cell, (height, width) = patch * merge, shape[:2]
        few, most = made.size["shortest_edge"], made.size["longest_edge"]
        same = all(image.shape == shape for image in images)
        if not same or height % cell or width % cell or not few <= height * width <= most:
            return None
        pixels = np.stack(images).astype(np.float32)
        scale = made.rescale_factor if made.do_rescale else 1.0
        if made.do_normalize:
            mean, deviation = np.float32(made.image_mean), np.float32(made.image_std)
            pixels = (pixels * np.float32(scale) - mean) / deviation
        else:
            pixels *= np.float32(scale)
        count, rows, columns = len(images), height // cell, width // cell
        pixels = pixels.reshape(count, rows, merge, patch, columns, merge, patch, 3)
        pixels = pixels.transpose(0, 1, 4, 2, 5, 7, 3, 6)[..., None, :, :]
        pixels = np.broadcast_to(pixels, (*pixels.shape[:6], made.temporal_patch_size, patch, patch))
        grid = np.array([[1, height // patch, width // patch]], np.int64).repeat(count, 0)
        return pixels.reshape(count * rows * columns * merge**2, -1), grid
