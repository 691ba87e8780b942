"""A small random Qwen3-VL with a tokenizer of its own: the whole pipeline on a CPU, without any download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from referee.datasets.windows import LABELS
from referee.envs.panda.tasks import TASKS
from referee.errors import RefereeError
from referee.models.vlm.encode import END, IMAGE, START, TURN_END, VIDEO
from referee.models.vlm.prompts import EXTRA, MAIN, make_input_builder
from referee.models.vlm.qwen import image_processor, transformers
from referee.models.window import Window
from referee.optional import require

SPECIAL = ("<|endoftext|>", "<|im_start|>", TURN_END, START, END, IMAGE, VIDEO)
_SHOWN = (
    "{{% if part.type == 'image' %}}{image}{{% elif part.type == 'video' %}}{video}"
    "{{% else %}}{{{{ part.text }}}}{{% endif %}}"
)
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}"
    + _SHOWN.format(image=START + IMAGE + END, video=START + VIDEO + END)
    + "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The chat format of Qwen3-VL, as far as our prompts use it."""

WIDE = 0.25
"""Weight of queries at the start; Qwen3 normalises them."""
MOTION = 4.0
"""How much larger filters of a difference are than the others."""


@dataclass(frozen=True, kw_only=True)
class TinyOptions:
    """The size of the model."""

    hidden: int = 64
    layers: int = 2
    heads: int = 2
    vision_hidden: int = 64
    vision_depth: int = 1
    patch: int = 16
    """Pixels of a patch; four patches are one token of language."""
    image_size: int = 64
    """Pictures of this size are taken as they are, smaller ones scaled up, larger ones kept."""
    seed: int = 0


def tiny_init(folder: Path, options: TinyOptions | None = None) -> int:
    """Write the model as safetensors and JSON; how many parameters it has."""
    library = transformers()
    options = options or TinyOptions()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RefereeError(f"{folder} is there already: choose a new folder")
    tokenizer = _tokenizer(library)
    net = library.Qwen3VLForConditionalGeneration(_config(library, tokenizer, options))
    _initialise(net, options)
    net.generation_config = library.GenerationConfig(
        eos_token_id=tokenizer.convert_tokens_to_ids(TURN_END), pad_token_id=tokenizer.pad_token_id
    )
    folder.mkdir(parents=True, exist_ok=True)
    net.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _image_processor(options).save_pretrained(folder)
    return sum(each.numel() for each in net.parameters())


def _config(library: Any, tokenizer: Any, options: TinyOptions) -> Any:
    ids = tokenizer.convert_tokens_to_ids
    head = options.hidden // options.heads
    half = head // 2
    sections = [half - 2 * (half // 3), half // 3, half // 3]
    side = options.image_size // options.patch
    return library.Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": options.hidden,
            "intermediate_size": 3 * options.hidden,
            "num_hidden_layers": options.layers,
            "num_attention_heads": options.heads,
            "num_key_value_heads": options.heads,
            "head_dim": head,
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": sections,
                "mrope_interleaved": True,
            },
            "pad_token_id": tokenizer.pad_token_id,
        },
        vision_config={
            "depth": options.vision_depth,
            "hidden_size": options.vision_hidden,
            "intermediate_size": 3 * options.vision_hidden,
            "num_heads": 4,
            "patch_size": options.patch,
            "out_hidden_size": options.hidden,
            "num_position_embeddings": side * side,
            "deepstack_visual_indexes": [0],
        },
        image_token_id=ids(IMAGE),
        video_token_id=ids(VIDEO),
        vision_start_token_id=ids(START),
        vision_end_token_id=ids(END),
        tie_word_embeddings=True,
    )


def _initialise(net: Any, options: TinyOptions) -> None:
    """Fan-in scaled weights: with 0.02 everywhere, so small a network would hardly see its pictures.

    Attention begins wide: normalised queries and keys of unit weight would make every token look at one other, and the
    answer at no picture. Half of the filters that see two frames of a clip begin as their difference: what moves is
    little of a picture, and finding that out takes longer than the rest.
    """
    torch.manual_seed(options.seed)
    for name, value in net.named_parameters():
        if name.endswith("q_norm.weight"):
            torch.nn.init.constant_(value, WIDE)
        if value.ndim < 2:
            continue
        fan = value[0].numel() if "embed" not in name or "patch" in name else value.shape[1]
        torch.nn.init.normal_(value, std=fan**-0.5)
        if "patch_embed" in name:
            half = value.data[: len(value) // 2]
            half[:, :, 1] = -half[:, :, 0]
            half *= MOTION


def _tokenizer(library: Any) -> Any:
    """Byte-level BPE over the texts of our own prompts; the label words are one token each."""
    tokenizers = require("tokenizers", extra="vlm", what="a vision-language model")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=list(SPECIAL),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(_texts(), trainer)
    return library.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<|endoftext|>", eos_token=TURN_END, chat_template=CHAT
    )


def _texts() -> list[str]:
    """What our prompts and answers are made of."""
    frames = {MAIN: np.zeros((5, 8, 8, 3), np.uint8), EXTRA: np.zeros((5, 2, 8, 8, 3), np.uint8)}
    texts = [
        *LABELS,
        *(f" {label}" for label in LABELS),
        "user\n",
        "assistant\n",
        "system\n",
        "<0.1 seconds><0.3 seconds>",
    ] * 4
    for task in TASKS.values():
        for params in ({}, {"by_view": False}, {"as_video": True}):
            builder = make_input_builder(params=params)
            texts += [part for part in builder(Window(frames, task.description)).parts if isinstance(part, str)] * 4
    return texts


def _image_processor(options: TinyOptions) -> Any:
    half = [0.5, 0.5, 0.5]
    return image_processor()(
        patch_size=options.patch,
        merge_size=2,
        temporal_patch_size=2,
        image_mean=half,
        image_std=half,
        size={"shortest_edge": options.image_size**2, "longest_edge": 1024**2},
    )
