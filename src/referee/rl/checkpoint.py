"""Checkpoints: safetensors and JSON in a directory, written whole or not at all."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file as load_tensors
from safetensors.torch import save_file as save_tensors

from referee import checksums, files
from referee.envs.tasks import same_task
from referee.errors import RefereeError
from referee.rl.policy import PolicySpec
from referee.rl.squashed import AnyPolicy, make_policy

VERSION = 1
T = TypeVar("T")


class CheckpointError(RefereeError):
    """A checkpoint is missing, broken, or not for this run."""


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on exactly where it was."""

    policy: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    arrays: dict[str, np.ndarray]
    """States of environments and random generators, by dotted name."""
    meta: dict[str, Any]
    """Plain values: spec of the policy, task, iteration, steps, scores."""


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write beside the goal, flush to disk, and rename; an existing checkpoint of that name is replaced."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        temporary.chmod(0o755)
        save_tensors(checkpoint.policy, temporary / "policy.safetensors")
        save_tensors(checkpoint.optimizer, temporary / "optimizer.safetensors")
        save_arrays(checkpoint.arrays, temporary / "state.safetensors")
        (temporary / "meta.json").write_text(json.dumps({"version": VERSION, **checkpoint.meta}, indent=1) + "\n")
        checksums.write_sums(temporary, [path.name for path in temporary.iterdir()])
        for path in temporary.iterdir():
            files.flush(path)
        old = folder.with_name(f".{folder.name}-old")
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)  # kept until the new one has its name
        temporary.rename(folder)
        files.flush(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load(folder: Path) -> Checkpoint:
    """Read a checkpoint, or one line that names the broken file."""
    if folder.is_dir():
        _verify(folder)
    return Checkpoint(
        _read(load_tensors, folder / "policy.safetensors"),
        _read(load_tensors, folder / "optimizer.safetensors"),
        _read(load_arrays, folder / "state.safetensors"),
        load_meta(folder),
    )


def _read(read: Callable[[Path], dict[str, T]], path: Path) -> dict[str, T]:
    try:
        return read(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}): the checkpoint is broken; take an earlier one of the same run"
        ) from error


def _verify(folder: Path, names: tuple[str, ...] | None = None) -> None:
    try:
        checksums.verify_sums(folder, names)
    except RefereeError as error:
        raise CheckpointError(f"{error}, or take an earlier checkpoint of the same run") from error


def load_meta(folder: Path) -> dict[str, Any]:
    """The plain values of a checkpoint."""
    path = folder / "meta.json"
    if path.exists():
        _verify(folder, ("meta.json",))
    try:
        meta = files.parse_json(path.read_text())
        if not isinstance(meta, dict) or not isinstance(meta.get("task", ""), str):
            raise ValueError("it holds no values by name")
    except OSError as error:
        raise CheckpointError(f"{folder} is no checkpoint: it holds no meta.json ({error.strerror})") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is broken ({error}): take an earlier checkpoint of the same run") from error
    if meta.get("version") != VERSION:
        raise CheckpointError(f"{path} has version {meta.get('version')}, this program reads version {VERSION}")
    return meta


def policy_spec(meta: dict[str, Any], folder: Path) -> PolicySpec:
    """What a checkpoint says about its policy."""
    try:
        return PolicySpec.from_json(meta.get("policy", {}))
    except ValueError as error:
        raise CheckpointError(
            f"{folder / 'meta.json'} is broken (policy: {error}): take an earlier checkpoint of the same run"
        ) from error


def find(place: Path) -> Path:
    """The checkpoint at `place`: itself, or the last one of a run directory."""
    if (place / "meta.json").exists():
        return place
    for folder in (place / "checkpoints", place):
        complete = [path for path in folder.glob("step_*") if (path / "meta.json").exists()]
        if complete:
            return max(complete, key=lambda path: int(path.name.removeprefix("step_")))
    raise CheckpointError(f"{place} holds no checkpoint: give a run directory, or one of its checkpoints/step_…")


def load_policy(folder: Path) -> tuple[AnyPolicy, dict[str, Any]]:
    """Only the policy of a checkpoint, ready to act."""
    checkpoint = load(folder)
    try:
        policy = make_policy(policy_spec(checkpoint.meta, folder))
    except (ValueError, RuntimeError) as error:  # sizes of which no network can be made
        raise CheckpointError(f"{folder / 'meta.json'} is broken (policy: {' '.join(str(error).split())})") from error
    _fill(policy, checkpoint.policy, folder)
    return policy.eval(), checkpoint.meta


def restore_policy(
    policy: AnyPolicy, checkpoint: Checkpoint, folder: Path, *, task: str, key: str = "env.train.task"
) -> None:
    """Put a checkpoint's weights into `policy`; refuse those of another task or network. key: that chooses the task."""
    theirs = checkpoint.meta.get("task")
    if not isinstance(theirs, str) or not same_task(theirs, task):
        raise CheckpointError(f"{folder} was trained on {theirs}, this run is on {task}: set {key}={theirs}")
    spec = policy_spec(checkpoint.meta, folder)
    if spec != policy.spec:
        different = [
            f"{name} {getattr(spec, name)} (here {getattr(policy.spec, name)})"
            for name in vars(spec)
            if getattr(spec, name) != getattr(policy.spec, name)
        ]
        raise CheckpointError(f"{folder} has another network: {', '.join(different)}; set actor.model and env to match")
    _fill(policy, checkpoint.policy, folder)


def _fill(policy: AnyPolicy, weights: dict[str, torch.Tensor], folder: Path) -> None:
    try:
        policy.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{folder}/policy.safetensors does not fit its meta.json: {reason}") from error


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimiser's moments by parameter number and name."""
    state = optimizer.state_dict()["state"]
    return {
        f"{i}.{name}": value.contiguous().clone() for i, moments in state.items() for name, value in moments.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    """The inverse of `optimizer_tensors`."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    sizes = [each.shape for group in optimizer.param_groups for each in group["params"]]
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        if not number.isdecimal() or int(number) >= len(sizes) or value.shape not in (sizes[int(number)], ()):
            raise CheckpointError(f"optimizer.safetensors does not fit the policy: {key[:100]} {list(value.shape)}")
        state.setdefault(int(number), {})[name] = value
    try:
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"optimizer.safetensors does not fit the policy: {error}") from error


def generator_state(random: np.random.Generator) -> np.ndarray:
    """PCG64's state as words: two 128-bit numbers and the buffered half."""
    state: Any = random.bit_generator.state
    words = [
        (number >> (64 * i)) & (2**64 - 1)
        for number in (state["state"]["state"], state["state"]["inc"])
        for i in (0, 1)
    ]
    return np.array([*words, state["has_uint32"], state["uinteger"]], np.uint64)


def restore_generator(random: np.random.Generator, words: np.ndarray) -> None:
    """The inverse of `generator_state`."""
    if words.shape != (6,) or words.dtype != np.uint64 or words[4] > 1 or words[5] >= 2**32:
        raise CheckpointError("state.safetensors is broken: it holds no state of a random generator")
    a, b, c, d, has, value = (int(word) for word in words)
    random.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": a | b << 64, "inc": c | d << 64},
        "has_uint32": has,
        "uinteger": value,
    }
