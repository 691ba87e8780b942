"""Loading a Qwen3-VL from a folder or the hub, with a LoRA adapter where one was trained; nothing loaded runs code."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from referee import checksums, cpu
from referee.config.vlm import QwenConfig
from referee.errors import RefereeError
from referee.models.vlm.encode import Encoder
from referee.optional import require

NOTE = "referee.json"
"""Beside weights that we trained: which base model, which prompts, which episodes."""
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_log = logging.getLogger(__name__)
MAX_RANK = 4096
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class QwenOptions(QwenConfig):
    """Which model, and how it computes; what keys may leave open is decided."""

    model_path: str | Path
    lora_path: str | Path | None = None
    use_chat_template: bool = True


@dataclass(eq=False)
class Qwen:
    """A model with what turns prompts into its inputs."""

    net: Any
    """`Qwen3VLForConditionalGeneration`"""
    encoder: Encoder
    note: dict[str, Any]
    """What `NOTE` says of the adapter, else of the model; empty where somebody else trained it."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return next(self.net.parameters()).device


def load(options: QwenOptions) -> Qwen:
    """The model in eval mode, with the adapter merged into its weights."""
    library = transformers()
    path = options.model_path
    _check_folder(path)
    _check_attention(options.attn_implementation)
    for each in (path, options.lora_path):
        if each is not None:
            checksums.verify_sums(Path(each))
    dtype = _dtype(options.precision)
    try:
        net = library.Qwen3VLForConditionalGeneration.from_pretrained(
            str(path), dtype=dtype, attn_implementation=options.attn_implementation, use_safetensors=True
        )
        tokenizer = library.AutoTokenizer.from_pretrained(str(path))
        images = image_processor().from_pretrained(str(path))
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise RefereeError(f"model_path={path} cannot be loaded as a Qwen3-VL: {_line(error)}") from error
    encoder = Encoder(tokenizer, images, chat=options.use_chat_template)
    note = read_note(path)
    if options.lora_path is not None:
        note = _check_adapter(net, Path(options.lora_path))
        if "base" not in note:
            _warn_of_another_base(Path(options.lora_path), path)
        net = _with_adapter(net, Path(options.lora_path))
    if torch.cuda.is_available():
        net = net.to("cuda")
    return Qwen(net.eval(), encoder, note)


def add_lora(net: Any, *, rank: int, alpha: float | None, dropout: float, vision: bool) -> Any:
    """The network, frozen, with an adapter at all linear layers of language (and of vision, if asked) that learns."""
    names = [
        name
        for name, module in net.named_modules()
        if isinstance(module, nn.Linear) and "lm_head" not in name and (vision or ".visual." not in name)
    ]
    peft = _peft()
    chosen = peft.LoraConfig(
        r=rank, lora_alpha=2 * rank if alpha is None else alpha, lora_dropout=dropout, target_modules=names, bias="none"
    )
    return peft.get_peft_model(net, chosen)


def fingerprint(net: Any) -> str:
    """Tells models apart by some numbers of each weight; the same whatever precision it was loaded with."""
    digest = hashlib.sha256()
    for name, value in sorted(net.state_dict().items()):
        digest.update(f"{name}{tuple(value.shape)}".encode())
        some = value.detach().flatten()[:16].to("cpu", torch.float32)
        digest.update(some.to(torch.bfloat16).to(torch.float32).numpy().tobytes())
    return digest.hexdigest()[:16]


def read_note(path: str | Path) -> dict[str, Any]:
    """What we wrote beside weights that we trained; nothing beside those of others."""
    file = Path(path) / NOTE
    if not file.is_file():
        return {}
    return _read_json(file)


def _read_json(file: Path) -> dict[str, Any]:
    """The object in a file, or one line that names it."""
    try:
        return checksums.unsealed(file.read_bytes())[0]
    except checksums.ChecksumError as error:
        raise RefereeError(f"{file}: {error}: bring it back from a copy") from error
    except (OSError, ValueError) as error:
        raise RefereeError(f"{file} is cut off or no JSON: {' '.join(str(error).split())}") from error


def taught_both_ways(note: Mapping[str, Any]) -> bool:
    """Whether a model has learned that a window played backwards is the opposite."""
    options = note.get("options")
    return bool(isinstance(options, Mapping) and options.get("random_reverse", False))


def write_note(folder: Path, note: dict[str, Any]) -> None:
    """The inverse."""
    checksums.write_json(folder / NOTE, note)


def is_vlm(path: Path) -> bool:
    """Whether a folder holds a Qwen3-VL, or an adapter of one."""
    if (path / ADAPTER).is_file():
        return True
    try:
        return str(_read_json(path / "config.json").get("model_type", "")).startswith("qwen3_vl")
    except RefereeError:
        return False


def base_of(path: Path) -> tuple[str, Path | None]:
    """model_path and lora_path of a folder that holds either."""
    if not (path / ADAPTER).is_file():
        return str(path), None
    base = _read_json(path / ADAPTER).get("base_model_name_or_path")
    if not base or not isinstance(base, str):
        raise RefereeError(
            f"{path / ADAPTER} does not say which model it belongs to: give it as reward.model.model_path"
        )
    return str(base), path


def check_installed() -> None:
    """Refuse to begin without the extra."""
    transformers()
    _peft()


def transformers() -> Any:
    """The library, quiet; or one line that says how to install it."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    found = require("transformers", extra="vlm", what="a vision-language model")
    found.utils.logging.disable_progress_bar()
    return found


def _peft() -> Any:
    return require("peft", extra="vlm", what="a LoRA adapter")


def image_processor() -> Any:
    """The class of the one that needs no torchvision."""
    module = "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl"
    return require(module, extra="vlm", what="a vision-language model").Qwen2VLImageProcessorPil


def _check_folder(path: str | Path) -> None:
    """Refuse a folder that is there but holds something else; what is no folder may be a name on the hub."""
    folder = Path(path)
    if folder.is_dir() and not is_vlm(folder):
        raise RefereeError(f"model_path={path} holds no Qwen3-VL: its config.json must say model_type qwen3_vl")
    if folder.is_dir() and (folder / ADAPTER).is_file():
        raise RefereeError(f"model_path={path} holds a LoRA adapter: give it as lora_path, and its base as model_path")
    if not folder.exists() and (folder.is_absolute() or str(path).startswith(".") or str(path).count("/") > 1):
        raise RefereeError(
            f"model_path={path} is not there: give a folder, or a name on the hub as Qwen/Qwen3-VL-4B-Instruct"
        )


def _check_attention(name: str) -> None:
    """Refuse what needs a package that is not here, before gigabytes are read."""
    if name == "flash_attention_2" and importlib.util.find_spec("flash_attn") is None:
        raise RefereeError(
            "attn_implementation=flash_attention_2 needs the package flash_attn (and a GPU), which is not installed: "
            "set attn_implementation=sdpa"
        )


def _dtype(precision: str) -> torch.dtype:
    if precision == "bf16":
        cpu.cap_if_needed()  # its first product could kill this process
    return TYPES[precision]


def _check_adapter(net: Any, path: Path) -> dict[str, Any]:
    """Refuse an adapter of another model before anything is put into this one; what its note says."""
    if not (path / ADAPTER).is_file():
        raise RefereeError(f"lora_path={path} holds no adapter: there is no {ADAPTER} in it")
    if not (path / ADAPTER_WEIGHTS).is_file():
        raise RefereeError(
            f"lora_path={path} has no {ADAPTER_WEIGHTS}: other files could run code; save it as safetensors"
        )
    note = read_note(path)
    if note.get("base") not in (None, fingerprint(net)):
        raise RefereeError(
            f"lora_path={path} was trained beside another model ({note.get('model_path')}): give that one as model_path"
        )
    modules = dict(net.named_modules())
    try:
        with safe_open(path / ADAPTER_WEIGHTS, framework="numpy") as weights:
            shapes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise RefereeError(f"{path / ADAPTER_WEIGHTS} cannot be read: {error}") from error
    for name, shape in shapes.items():
        if len(shape) != 2:
            raise RefereeError(f"{path / ADAPTER_WEIGHTS} is broken: {name[:100]} has the shape {shape}")
        where, _, side = name.removeprefix("base_model.model.").partition(".lora_")
        module = modules.get(where)
        if module is None or not hasattr(module, "in_features"):
            raise RefereeError(f"lora_path={path} is for another model: {where} is not in model_path")
        here = module.in_features if side.startswith("A") else module.out_features
        there = shape[1] if side.startswith("A") else shape[0]
        if here != there:
            raise RefereeError(
                f"lora_path={path} is for another model: {where} has {there} features there and {here} here"
            )
    return note


def _with_adapter(net: Any, path: Path) -> Any:
    """The network with an adapter merged into its weights."""
    config = _read_json(path / ADAPTER)
    if config.get("peft_type") != "LORA":
        raise RefereeError(f"{path / ADAPTER} describes no LoRA adapter: peft_type must be LORA")
    rank, alpha, names = config.get("r"), config.get("lora_alpha"), config.get("target_modules")
    if type(rank) is not int or not 0 < rank <= MAX_RANK or type(alpha) not in (int, float):
        raise RefereeError(f"{path / ADAPTER} has r={str(rank)[:20]} and lora_alpha={str(alpha)[:20]}, which cannot be")
    if not isinstance(names, str) and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise RefereeError(f"{path / ADAPTER} names no target_modules")
    try:
        return _peft().PeftModel.from_pretrained(net, str(path)).merge_and_unload()
    except (
        OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError, NotImplementedError,
        ImportError, OverflowError, AssertionError, SafetensorError,
    ) as error:  # fmt: skip
        raise RefereeError(f"lora_path={path} cannot be loaded as a LoRA adapter: {_line(error)}") from error


def _warn_of_another_base(lora: Path, model: str | Path) -> None:
    """What others trained says only by name which model it belongs to; one of the same shape cannot be told apart."""
    named = _read_json(lora / ADAPTER).get("base_model_name_or_path")
    if named and not _same_model(str(named), str(model)):
        _log.warning(
            "lora_path=%s names %s as its model (base_model_name_or_path), but model_path=%s: if these are not the "
            "same weights, what it says means nothing", lora, named, model,
        )  # fmt: skip


def _same_model(one: str, other: str) -> bool:
    """Whether two names may mean the same: the same folder, or a name on the hub and a folder called like it."""
    if "\0" in one:  # no name of anything
        return False
    if one == other or Path(one).resolve() == Path(other).resolve():
        return True
    on_the_hub = [name for name in (one, other) if name.count("/") == 1 and not Path(name).exists()]
    return bool(on_the_hub) and Path(one).name == Path(other).name


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
