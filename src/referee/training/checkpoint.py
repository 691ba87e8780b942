"""checkpoint.pt: a dict of plain values and tensors from which a training goes on exactly where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from referee import checksums, files
from referee.episodes.formats.safe import load_torch
from referee.errors import RefereeError

NAME = "checkpoint.pt"
DOCUMENTED = ("epoch", "model_state_dict", "optimizer_state_dict", "train_loss", "train_acc")


def save(path: Path, values: dict[str, Any]) -> None:
    """The whole file, or none of it."""
    with files.replacing(path) as temporary, temporary.open("wb") as file:
        torch.save(values, file)  # to a path, torch would not say that the disk is full


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
