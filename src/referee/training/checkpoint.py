"""checkpoint.pt: a dict of plain values and tensors from which a training goes on exactly where it was."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from referee import checksums, files
from referee.errors import RefereeError
from referee.reading.safe_load import load_torch

NAME = "checkpoint.pt"
DOCUMENTED = ("epoch", "model_state_dict", "optimizer_state_dict", "train_loss", "train_acc")


def save(path: Path, values: dict[str, Any]) -> None:
    """The whole file, or none of it."""
    with files.replacing(path) as temporary:
        with temporary.open("wb") as file:
            torch.save(values, file)  # to a path, torch would not say that the disk is full
        checksums.seal_zip(temporary)


def link(step: Path, folder: Path) -> None:
    """Make a checkpoint's directory that is kept elsewhere appear in `folder`, where a run is gone on from."""
    place = folder / step.name
    if folder.exists() and folder.resolve() == step.parent.resolve():
        return
    folder.mkdir(parents=True, exist_ok=True)
    if place.is_symlink():
        place.unlink()
    if not place.exists():
        place.symlink_to(os.path.relpath(step.resolve(), folder.resolve()), target_is_directory=True)


def load(path: Path) -> dict[str, Any]:
    """Any file with the documented keys; what has been saved here has more, and can be resumed."""
    if path.is_dir():
        path = path / NAME
    if not path.exists():
        raise RefereeError(f"{path} is not there: give a checkpoint.pt, its folder, or a run with some")
    values = load_torch(path)
    checksums.verify_zip(path)
    if not isinstance(values, dict) or not set(DOCUMENTED) <= values.keys():
        raise RefereeError(f"{path}: is no checkpoint of a reward model: it must hold {', '.join(DOCUMENTED)}")
    return values


def step_of(place: Path | None) -> int | None:
    """The step at which a training goes on from `place`; None where it begins from nothing."""
    if place is None:
        return None
    found = find(place)
    name = (found if found.is_dir() else found.parent).name
    if name.startswith("step_") and name[5:].isdigit():
        return int(name[5:])
    return int(load(found).get("step", 0))


def find(place: Path) -> Path:
    """The checkpoint at `place`: a file, its folder, or the last one of a run."""
    found = latest(place)
    if found is None:
        raise RefereeError(f"{place} holds no checkpoint: give a checkpoint.pt, its folder, or a run with some")
    return found


def latest(place: Path) -> Path | None:
    """The same, or None where there is none."""
    if place.is_file() or (place / NAME).exists():
        return place
    for folder in (place / "checkpoints", place):
        steps = [path.parent for path in folder.glob(f"step_*/{NAME}") if path.parent.name[5:].isdigit()]
        if steps:
            return max(steps, key=lambda path: int(path.name[5:]))
    return None
