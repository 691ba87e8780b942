"""Features of a frozen encoder: computed once per dataset and encoder, kept on disk, and read through a mapping."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from referee import checksums, files
from referee.config.reward_training import AugmentConfig
from referee.models.contract import RewardModel
from referee.training.augment import augment
from referee.training.options import NO_AUGMENTATION
from referee.training.source import FeatureSource, Frames

_log = logging.getLogger(__name__)
BATCH = 512
"""Frames read at once; the model takes them by pieces."""
VERSION = 3
SUM_DIGITS = 16


def cached_features(
    model: RewardModel,
    frames: Frames,
    content_hash: str,
    folder: Path,
    *,
    copies: int = 0,
    augmentation: AugmentConfig = NO_AUGMENTATION,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> FeatureSource:
    """The features of all frames, from `folder` where they are there, else encoded and kept there.

    content_hash: of the frames. With the hash of all that the encoder does, it names the file: another frame or weight
        makes another file.
    copies: how many times the frames are encoded once more, changed at random.
    progress: hears of newly encoded frames.
    """
    name = encoder_hash(model)
    found: list[np.ndarray] = []
    for number in range(copies + 1):
        changes = f"{augmentation}:{seed}:{number}" if number else "none"
        key = hashlib.sha256(f"{VERSION}:{content_hash}:{name}:{changes}".encode()).hexdigest()[:32]
        path = folder / f"features-{key}.npy"
        if not _is_whole(path):
            options = augmentation if number else NO_AUGMENTATION
            _encode(model, frames, path, options, np.random.default_rng((seed, number)), progress)
        found.append(np.load(path, mmap_mode="r"))
    return FeatureSource(found, frames.labels.numpy())


def encoder_hash(model: RewardModel) -> str:
    """Of everything between an image and its features: the specification, and all that is not learning."""
    digest = hashlib.sha256(json.dumps(model.spec.to_json(), sort_keys=True).encode())
    learning = {name for name, each in model.named_parameters() if each.requires_grad}
    for name, tensor in sorted(model.state_dict().items()):
        if name not in learning and tensor.is_floating_point():  # counters of batches change nothing
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _encode(
    model: RewardModel,
    frames: Frames,
    path: Path,
    options: AugmentConfig,
    random: np.random.Generator,
    progress: Callable[[int], None] | None,
) -> None:
    # Written, not mapped: a full disk is then an error that can be told, and not the end of the process.
    with files.replacing(path, sync=False) as temporary, temporary.open("wb") as file:
        for start in range(0, len(frames), BATCH):
            rows = np.arange(start, min(start + BATCH, len(frames)))
            images, _ = frames.batch(rows)
            features = model.features(augment(images, options, random))
            if not start:
                header = {"descr": "<f4", "fortran_order": False, "shape": (len(frames), features.shape[1])}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(np.ascontiguousarray(features, "<f4").data)
            if progress is not None:
                progress(len(rows))
        file.flush()
        file.write(checksums.page_sum_of(temporary).encode())


def _is_whole(path: Path) -> bool:
    """Whether features are there as they were written: sixteen digits at the end are the sum of the rest."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        file.seek(-min(SUM_DIGITS, path.stat().st_size), os.SEEK_END)
        written = file.read().decode("ascii", "replace")
    if checksums.page_sum_of(path, without=SUM_DIGITS) == written:
        return True
    _log.warning("%s has changed since it was written (checksum): the frames are encoded again", path)
    return False


def content_hash(frames: Frames) -> str:
    """Of images and labels, as `RewardBinaryDataset` writes it into the metadata of its files."""
    said = getattr(frames, "metadata", {}).get("content_hash")
    if isinstance(said, str):
        return said
    digest = hashlib.sha256()
    for start in range(0, len(frames), 256):
        images, _ = frames.batch(np.arange(start, min(start + 256, len(frames))))
        digest.update(images.numpy().reshape(-1).data)
    digest.update(bytes(frames.labels.tolist()))
    return f"sha256:{digest.hexdigest()}"


def forget(folder: Path, *, keep_bytes: int = 4_000_000_000) -> None:
    """Remove the oldest cached features until the rest takes no more than `keep_bytes`."""
    found = sorted(folder.glob("features-*.npy"), key=lambda path: path.stat().st_mtime)
    size = sum(path.stat().st_size for path in found)
    for path in found:
        if size <= keep_bytes:
            return
        size -= path.stat().st_size
        path.unlink()
