"""From prompts to the tensors that a Qwen3-VL takes: one way for training, audit and online use."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from referee.errors import RefereeError
from referee.models.vlm.prompts import Prompt

IMAGE, VIDEO, START, END = "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"
SHOWN = re.compile(f"{re.escape(IMAGE)}|{re.escape(START + VIDEO + END)}")
"""Where a picture or a clip goes; a clip brings its own beginnings and ends."""
FPS, PAIR = 10.0, 2
"""Frames per second of clips, as their times are told; and frames that are seen at a time."""
KNOWN = 1024
"""Texts whose tokens are kept."""
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
        self.image_id, self.video_id = self._one_token(IMAGE), self._one_token(VIDEO)
        self.end_id = self._one_token(TURN_END) if chat else int(tokenizer.eos_token_id)
        pad = tokenizer.pad_token_id
        self.pad_id = int(self.end_id if pad is None else pad)
        self._known: dict[tuple[str | int, ...], list[int]] = {}

    def _one_token(self, text: str) -> int:
        found = self.tokenizer.convert_tokens_to_ids(text)
        if found is None or found == self.tokenizer.unk_token_id:
            raise RefereeError(f"the tokenizer does not know {text}: it is not one of a Qwen3-VL")
        return int(found)

    def encode(self, prompts: Sequence[Prompt], answers: Sequence[str] | None = None) -> Batch:
        """Tensors of some prompts; with answers, these follow, and are all that has labels."""
        arrays = [part for prompt in prompts for part in prompt.parts if isinstance(part, np.ndarray)]
        pixels, grids = self._pixels([each for each in arrays if each.ndim == 3])
        films, clips = self._films([each for each in arrays if each.ndim == 4])
        merged = self.images.merge_size**2
        sizes = iter((grids.prod(1) // merged).tolist())
        lengths = iter([(int(grid[0]), int(grid[1:].prod() // merged)) for grid in clips])
        rows = []
        for prompt in prompts:
            shown = [part for part in prompt.parts if isinstance(part, np.ndarray)]
            places = [IMAGE * next(sizes) if each.ndim == 3 else _timed(*next(lengths)) for each in shown]
            rows.append(self._tokens(prompt, places))
        inputs, labels = self._padded(rows, answers)
        if len(grids):
            inputs |= {"pixel_values": torch.from_numpy(pixels), "image_grid_thw": torch.from_numpy(grids)}
        if len(clips):
            inputs |= {"pixel_values_videos": torch.from_numpy(films), "video_grid_thw": torch.from_numpy(clips)}
        return Batch(inputs, labels)

    def _padded(
        self, rows: Sequence[list[int]], answers: Sequence[str] | None
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Rows of tokens with their answers, padded on the left; and the labels."""
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
        kinds = np.select([ids == self.image_id, ids == self.video_id], [1, 2], 0) * mask
        inputs = {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask),
            "mm_token_type_ids": torch.from_numpy(kinds.astype(np.int32)),
        }
        return inputs, torch.from_numpy(labels) if answers is not None else None

    def answer_tokens(self, answer: str) -> list[int]:
        """An answer as the model is to write it: its words, and the end of its turn."""
        return [*self.word_tokens(answer), self.end_id]

    def word_tokens(self, word: str) -> list[int]:
        """A word at the beginning of an answer."""
        return list(self.tokenizer.encode(word, add_special_tokens=False))

    def _tokens(self, prompt: Prompt, places: Sequence[str]) -> list[int]:
        """The tokens of one prompt; a picture or clip is as many tokens as the model has features of it.

        Windows of one task ask the same, so that a text is nearly always known.
        """
        kinds = (part if isinstance(part, str) else part.ndim for part in prompt.parts)
        text = (prompt.system, *kinds, *places)
        if text not in self._known:
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known[text] = self._tokenised(prompt, places)
        return self._known[text]

    def _tokenised(self, prompt: Prompt, places: Sequence[str]) -> list[int]:
        pieces = SHOWN.split(self._text(prompt))
        if len(pieces) != len(places) + 1:
            raise RefereeError(
                f"a prompt with {len(places)} pictures has {len(pieces) - 1} places for them: "
                f"its text, or the task's description, must not hold {IMAGE}"
            )
        joined = "".join(piece + place for piece, place in zip(pieces, [*places, ""], strict=True))
        return list(self.tokenizer.encode(joined, add_special_tokens=False))

    def _text(self, prompt: Prompt) -> str:
        if not self.chat:
            films = START + VIDEO + END
            shown = [part if isinstance(part, str) else START + IMAGE + END if part.ndim == 3 else films
                     for part in prompt.parts]  # fmt: skip
            return "".join([prompt.system, *shown])
        content = [
            {"type": "text", "text": part}
            if isinstance(part, str)
            else {"type": "image" if part.ndim == 3 else "video"}
            for part in prompt.parts
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
        shape = images[0].shape
        if any(image.shape != shape for image in images) or self._size(*shape[:2]) != shape[:2]:
            return None
        still = self._normal(np.stack(images))[:, None]
        frames = np.broadcast_to(still, (len(images), self.images.temporal_patch_size, *shape))
        return self._cut(frames), self._grid(1, shape).repeat(len(images), 0)

    def _films(self, clips: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Patches f32[p,d] and grids i64[n,3] of clips; of an odd number of frames the last is shown twice."""
        if not clips:
            return np.empty((0, 0), np.float32), np.empty((0, 3), np.int64)
        if any(clip.shape != clips[0].shape for clip in clips):
            patches, grids = zip(*(self._films([clip]) for clip in clips), strict=True)
            return np.concatenate(patches), np.concatenate(grids)
        height, width = self._size(*clips[0].shape[1:3])
        frames = np.stack([_scaled(clip, height, width) for clip in clips])
        pair = self.images.temporal_patch_size
        frames = np.concatenate([frames, frames[:, -1:].repeat(-frames.shape[1] % pair, 1)], axis=1)
        times = frames.shape[1] // pair
        cut = self._cut(self._normal(frames).reshape(-1, pair, height, width, 3))
        return cut, self._grid(times, (height, width)).repeat(len(clips), 0)

    def _size(self, height: int, width: int) -> tuple[int, int]:
        """What the processor scales pictures of a size to."""
        scale = importlib.import_module(type(self.images).__module__).smart_resize
        low, high = self.images.size["shortest_edge"], self.images.size["longest_edge"]
        cell = self.images.patch_size * self.images.merge_size
        found: tuple[int, int] = scale(height, width, factor=cell, min_pixels=low, max_pixels=high)
        return found

    def _normal(self, pixels: np.ndarray) -> np.ndarray:
        """f32: pixels as the model knows them."""
        made = self.images
        found = pixels.astype(np.float32)
        if made.do_rescale:
            found *= np.float32(made.rescale_factor)
        return (found - np.float32(made.image_mean)) / np.float32(made.image_std) if made.do_normalize else found

    def _cut(self, frames: np.ndarray) -> np.ndarray:
        """f32[n,t,H,W,3] to patches f32[n·p,3·t·s·s], those that become one token beside each other."""
        patch, merge = self.images.patch_size, self.images.merge_size
        count, pair, height, width = frames.shape[:4]
        cell = patch * merge
        split = frames.reshape(count, pair, height // cell, merge, patch, width // cell, merge, patch, 3)
        patches = split.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
        return patches.reshape(count * (height // patch) * (width // patch), -1)

    def _grid(self, times: int, shape: Sequence[int]) -> np.ndarray:
        """i64[1,3]: how many patches there are in time, height and width."""
        return np.array([[times, shape[0] // self.images.patch_size, shape[1] // self.images.patch_size]], np.int64)


def _scaled(clip: np.ndarray, height: int, width: int) -> np.ndarray:
    """A clip uint8[k,H,W,3] in another size."""
    if clip.shape[1:3] == (height, width):
        return clip
    size, how = (width, height), Image.Resampling.BICUBIC
    return np.stack([np.asarray(Image.fromarray(each).resize(size, how)) for each in clip])


def _timed(times: int, size: int) -> str:
    """The places of a clip: for each pair of frames its time and its tokens."""
    at = [(PAIR * number + 0.5 * (PAIR - 1)) / FPS for number in range(times)]
    return "".join(f"<{time:.1f} seconds>{START}{VIDEO * size}{END}" for time in at)
