"""Weights from elsewhere: torchvision's and SERL's encoders, the documented .pt checkpoints. None can run code."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from referee import checksums
from referee.models.contract import ModelError, ModelSpec, RewardModel
from referee.models.resnet import LAYOUTS, arch_named, map_size
from referee.models.spec import MAIN_NAMES
from referee.reading.safe_load import load_pickle, load_torch

_log = logging.getLogger(__name__)
State = dict[str, Tensor]
_WRAPPERS = ("model_state_dict", "state_dict", "params")
_PREFIXES = ("module.", "_orig_mod.", "model.")
RUN_TIME = ("precision", "freeze_encoder")
"""Fields that are chosen anew whenever a model is opened."""
_IGNORED = re.compile(r"(^|\.)(num_batches_tracked|_?mean|_?std)$|^output_head[./]|^fc\.")
"""What an encoder's file may hold besides its encoder, and what follows from a spec."""


@dataclass(frozen=True)
class Encoder:
    """An encoder out of a file: its weights by torchvision's names, and what they say about it."""

    state: State
    properties: dict[str, Any]
    """`arch`, `width`, `norm`, `padding`, as of a spec."""


# --- encoders ---


def read_encoder(path: Path) -> Encoder:
    """The encoder in a .pt, .pth, .safetensors or .pkl file, named as torchvision, SERL (flax) or its port to torch do.

    SERL's own resnet10_params.pkl loads where it holds plain arrays; arrays of JAX are code, and are refused.
    """
    state = read_state(path)
    if "conv_init/kernel" in state:
        state, padding = _from_flax(state), "same"
    elif "embedder.0.weight" in state:
        state, padding = _from_port(state), "same"
    else:
        state, padding = _inside(state), "torch"
    state = {name: value for name, value in state.items() if not _IGNORED.search(name)}
    if "conv1.weight" not in state:
        raise ModelError(f"{path}: holds no ResNet: no conv1.weight, embedder.0.weight or conv_init/kernel in it")
    return Encoder(state, {**_properties(state, str(path)), "padding": padding})


def fill(module: nn.Module, state: Mapping[str, Tensor], name: str) -> None:
    """Put weights into a module; all of them must be there and fit."""
    wanted = {key: value for key, value in module.state_dict().items() if not key.endswith("num_batches_tracked")}
    for key, value in wanted.items():
        if key not in state:
            raise ModelError(f"{name}: holds no {key}, so it is of another model")
        if state[key].shape != value.shape:
            raise ModelError(
                f"{name}: {key} is {list(state[key].shape)}, but {list(value.shape)} is needed: it is of another model"
            )
    strange = next((key for key in state if key not in wanted and not _IGNORED.search(key)), None)
    if strange is not None:
        raise ModelError(f"{name}: holds {strange}, which the model does not have")
    with torch.no_grad():
        for key, value in wanted.items():
            if not bool(state[key].isfinite().all()):
                raise ModelError(
                    f"{name}: {key} holds NaN or infinity: its training diverged; take an earlier checkpoint"
                )
            value.copy_(state[key])


def adopt(
    spec: ModelSpec,
    found: Mapping[str, Any],
    name: str,
    log: logging.Logger = _log,
    said: Collection[str] | None = None,
) -> ModelSpec:
    """The spec with what a checkpoint says about itself, and a warning that names the differences.

    said: the fields that somebody has set, so that a difference is worth a word; None: all of them.
    """
    changes = {key: value for key, value in found.items() if getattr(spec, key) != value}
    differing = [
        f"{key}={_shown(value)}, not {_shown(getattr(spec, key))}"
        for key, value in changes.items()
        if said is None or key in said
    ]
    if differing:
        log.warning("%s has %s: taken from the file", name, "; ".join(differing))
    return spec.but(**changes)


def settle(
    spec: ModelSpec, own: ModelSpec, name: str, said: Collection[str] | None, free: Collection[str] = RUN_TIME
) -> ModelSpec:
    """What runs where a model says all about itself: its own values, but for those that are `free` and were `said`."""
    free = {field for field in free if said is None or field in said}
    found = {field: value for field, value in vars(own).items() if field not in free}
    if _same_views(spec.cameras, own.cameras):
        renamed = zip(spec.cameras, own.cameras, strict=True)
        crop = {theirs: spec.crop[ours] for ours, theirs in renamed if ours in spec.crop}
        spec = spec.but(cameras=own.cameras, crop=crop)
    return adopt(spec, found, name, said=said)


# --- the documented checkpoints ---


def load_checkpoint(
    path: Path, spec: ModelSpec, said: Collection[str] | None = None, free: Collection[str] = RUN_TIME
) -> RewardModel:
    """The model in a .pt checkpoint (or in a plain state dict) of a classifier that follows a spec.

    Where checkpoint and spec differ (`hidden_dim`, `use_pretrain` as seen in the pooling kernel's shape, …) the
    checkpoint is right, and a warning says so where the field is one that somebody `said` (see `adopt`).
    """
    from referee.models.registry import build

    spec, state = read_checkpoint(path, spec, said, free)
    model = build(spec)
    fill(model, state, str(path))
    return model


def read_checkpoint(
    path: Path,
    spec: ModelSpec,
    said: Collection[str] | None = None,
    free: Collection[str] = RUN_TIME,
    *,
    any_views: bool = False,
) -> tuple[ModelSpec, State]:
    """The spec and the weights of the model in a checkpoint; see `load_checkpoint`, and `infer` for `any_views`."""
    values = _load(path)
    state = _own_names(_tensors(values, path))
    own = values.get("config") if isinstance(values, Mapping) else None
    if isinstance(own, Mapping):
        return settle(spec, ModelSpec.from_json(own), str(path), said, {*free, "freeze_encoder"}), state
    return adopt(spec, infer(state, spec, str(path), any_views=any_views), str(path), said=said), state


def infer(state: Mapping[str, Tensor], spec: ModelSpec, name: str, *, any_views: bool = False) -> dict[str, Any]:
    """What the weights of one of our classifiers say about its spec; any_views: whatever its cameras are called."""
    encoder = {key.removeprefix("encoder."): value for key, value in state.items() if key.startswith("encoder.")}
    if "conv1.weight" not in encoder:
        raise ModelError(f"{name}: holds no encoder.conv1.weight, so it is no classifier that this version knows")
    found = _properties(encoder, name)
    kernels = [value for key, value in state.items() if re.fullmatch(r"pooling\.\d+\.kernel", key)]
    found["model_type"] = "binary_classifier" if kernels else "resnet"
    views = _views(state, kernels, found, name)
    if views != len(spec.cameras) and not any_views:
        raise ModelError(f"{name}: is of a model of {views} cameras, but {', '.join(spec.cameras)} are configured")
    last = "classifier.3.weight"
    found["hidden_dim"] = state[last].shape[1] if last in state else None
    if kernels:
        side, _, _, found["num_spatial_blocks"] = kernels[0].shape
        expected = map_size(spec.image_size)
        found["pooling"] = "spatial" if side != 1 or expected == 1 else "average"
        if found["pooling"] == "spatial" and side != expected:
            found["image_size"] = 32 * side
    return found


# --- reading ---


def read_state(path: Path) -> State:
    """The tensors in a file by name; nested dicts, as flax makes them, are joined by slashes."""
    return _tensors(_load(path), path)


def _load(path: Path) -> Any:
    if not path.is_file():
        raise ModelError(f"{path}: is not there, or not a file" + (": give a file in it" if path.is_dir() else ""))
    kind = path.suffix.lower()
    if kind == ".safetensors":
        return read_safetensors(path)
    if kind in (".pt", ".pth", ".bin"):
        values = load_torch(path)  # refuses what is packed
        checksums.verify_zip(path)
        return values
    if kind == ".pkl":
        try:
            return load_pickle(path)
        except Exception as error:
            if "jax" in str(error):
                raise ModelError(
                    f"{path}: holds arrays of JAX, which only JAX can read: convert it once with "
                    "`jax.tree_util.tree_map(numpy.asarray, params)` and save that"
                ) from error
            raise
    raise ModelError(f"{path}: weights are read from .pt, .pth, .safetensors or .pkl")


def read_safetensors(path: Path) -> State:
    """The tensors of a safetensors file, or one line that names it."""
    try:
        return load_file(path)
    except FileNotFoundError as error:
        raise ModelError(f"{path}: is missing") from error
    except (OSError, SafetensorError, ValueError) as error:
        raise ModelError(f"{path}: is cut off or broken ({str(error)[:100]})") from error


def _tensors(values: Any, path: Path) -> State:
    while isinstance(values, Mapping):
        inner = next((values[name] for name in _WRAPPERS if isinstance(values.get(name), Mapping)), None)
        if inner is None:
            break
        values = inner
    if not isinstance(values, Mapping):
        raise ModelError(f"{path}: holds no state dict")
    flat: State = {}
    _flatten(values, "", flat)
    if not flat:
        raise ModelError(f"{path}: holds no tensors")
    while True:
        prefix = next((each for each in _PREFIXES if all(name.startswith(each) for name in flat)), None)
        if prefix is None:
            return flat
        flat = {name.removeprefix(prefix): value for name, value in flat.items()}


def _flatten(values: Mapping[Any, Any], prefix: str, into: State) -> None:
    for name, value in values.items():
        if isinstance(value, Mapping):
            _flatten(value, f"{prefix}{name}/", into)
        elif isinstance(value, Tensor | np.ndarray):
            tensor = torch.as_tensor(np.array(value)) if isinstance(value, np.ndarray) else value
            into[f"{prefix}{name}"] = tensor.float() if tensor.is_floating_point() else tensor


# --- other people's names ---


def _from_flax(state: State) -> State:
    """SERL's names and HWIO kernels to torchvision's names and OIHW."""
    rules = [(r"^conv_init/kernel$", "conv1.weight"), (r"^norm_init/", "bn1.")]
    found = {}
    for name, value in state.items():
        block = re.match(r"^ResNetBlock_(\d+)/(.+)$", name)
        if block:
            new = _flax_inside(block[2])
            new = None if new is None else f"{_place(int(block[1]), len(_flax_blocks(state)))}.{new}"
        else:
            new = next((re.sub(old, fresh, name) for old, fresh in rules if re.search(old, name)), None)
        if new is not None:
            new = new.replace("scale", "weight")
            found[new] = value.permute(3, 2, 0, 1).contiguous() if value.ndim == 4 else value
    return found


def _flax_blocks(state: State) -> set[str]:
    return {name.split("/")[0] for name in state if name.startswith("ResNetBlock_")}


def _flax_inside(name: str) -> str | None:
    """The name of a block's weight: Conv_0/kernel → conv1.weight, MyGroupNorm_1/scale → bn2.scale, …"""
    conv = re.match(r"^Conv_(\d)/kernel$", name)
    norm = re.match(r"^(?:My)?GroupNorm_(\d)/(scale|bias)$", name)
    if conv:
        return f"conv{int(conv[1]) + 1}.weight"
    if norm:
        return f"bn{int(norm[1]) + 1}.{norm[2]}"
    if name == "conv_proj/kernel":
        return "downsample.0.weight"
    return name.replace("norm_proj/", "downsample.1.") if name.startswith("norm_proj/") else None


def _from_port(state: State) -> State:
    """The names of SERL's ResNet10 as LeRobot uses it: embedder, encoder.stages, norm1, shortcut."""
    rules: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
        (r"^embedder\.0\.", "conv1."),
        (r"^embedder\.1\.", "bn1."),
        (r"^encoder\.(?:stages\.)?(\d)\.", lambda found: f"layer{int(found[1]) + 1}.0."),
        (r"\.norm(\d)\.", r".bn\1."),
        (r"\.shortcut\.", ".downsample."),
        (r"\.conv\.weight$", ".weight"),
    ]
    found = {}
    for name, value in state.items():
        for old, new in rules:
            name = re.sub(old, new, name)
        found[name] = value
    return found


def _inside(state: State) -> State:
    """The encoder of a whole model, where the file holds one."""
    for prefix in ("encoder.", "backbone.", "resnet_backbone."):
        if f"{prefix}conv1.weight" in state:
            return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    return state


def _own_names(state: State) -> State:
    """The names of a classifier whose ResNet is called `backbone` and whose head is its `fc`, to ours."""
    if "backbone.conv1.weight" not in state:
        return state
    found = {}
    for name, value in state.items():
        name = re.sub(r"^backbone\.fc\.|^head\.", "classifier.", name)
        found[re.sub(r"^backbone\.", "encoder.", name)] = value
    return found


def _place(number: int, count: int) -> str:
    """Where the n-th block of a flax ResNet is in torchvision's stages."""
    sizes = {sum(layout.blocks): layout.blocks for layout in LAYOUTS.values() if not layout.bottleneck}
    if count not in sizes:
        raise ModelError(f"a ResNet of {count} blocks is unknown")
    for stage, size in enumerate(sizes[count]):
        if number < size:
            return f"layer{stage + 1}.{number}"
        number -= size
    raise ModelError(f"a ResNet of {count} blocks has no block of that number")


# --- what weights say ---


def _properties(state: Mapping[str, Tensor], name: str) -> dict[str, Any]:
    """`arch`, `width` and `norm` of a ResNet by torchvision's names."""
    blocks = {tuple(key.split(".")[:2]) for key in state if re.match(r"^layer\d\.\d+\.", key)}
    counts = tuple(sum(stage == f"layer{number}" for stage, _ in blocks) for number in (1, 2, 3, 4))
    width = int(state["conv1.weight"].shape[0])
    arch = arch_named(counts, "layer1.0.conv3.weight" in state, width)
    if arch is None:
        raise ModelError(f"{name}: {'-'.join(map(str, counts))} blocks make none of {', '.join(LAYOUTS)}")
    norm = "batch" if "bn1.running_mean" in state else "group"
    return {"arch": arch, "width": width, "norm": norm}


def _views(state: Mapping[str, Tensor], kernels: list[Tensor], found: Mapping[str, Any], name: str) -> int:
    if kernels:
        return len(kernels)
    first = state.get("classifier.0.weight", state.get("classifier.weight"))
    if first is None:
        raise ModelError(f"{name}: holds no classifier.0.weight, so it has no head that this version knows")
    channels = found["width"] * 8 * (4 if LAYOUTS[found["arch"]].bottleneck else 1)
    return int(first.shape[1]) // channels


def _same_views(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether cameras are the same; the main one has several names."""
    if len(one) != len(other):
        return False
    return all(a == b or (not place and a in MAIN_NAMES) for place, (a, b) in enumerate(zip(one, other, strict=True)))


def _shown(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)
