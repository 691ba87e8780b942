"""A model learns from the answers, warm, in seconds; and whether it is better than the one before."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from referee.audit.calibrate import TARGET, calibrate, fewest_mistakes
from referee.audit.judged import Judged, judge_frames
from referee.datasets.payload import RewardBinaryDataset
from referee.datasets.split import frame_hashes
from referee.errors import RefereeError
from referee.metrics.calibration import nll, probability
from referee.metrics.ranking import auroc
from referee.models import Artifact, Calibration, Reference
from referee.models.artifact import embed
from referee.training.data import FrameSet
from referee.training.fit import fit
from referee.training.options import FitOptions
from referee.training.sampling import evenly
from referee.training.source import ImageSource

BASE_FRAMES = 1024
"""Frames of the first training that are drawn for each retraining, so that nothing is forgotten."""
SHARE = 0.5
"""Of the frames of a retraining that are answered ones, each of them at most `REPEATS` times."""
REPEATS = 32
REFERENCE_FRAMES, VAL_FRAMES = 1024, 384
"""From which the reference of a retrained model is made."""
WORSE = 0.01
"""So much AUROC on the first validation may be lost."""


@dataclass(frozen=True, eq=False)
class Labelled:
    """Frames with their labels."""

    images: np.ndarray
    """uint8[n,V,H,W,3]"""
    labels: np.ndarray
    """int64[n], 0 or 1."""

    def __len__(self) -> int:
        return len(self.labels)


class Base:
    """What an artifact was first trained and validated on."""

    def __init__(self, artifact: Artifact, train: Sequence[Path] = (), val: Sequence[Path] = ()) -> None:
        """train, val: files of frames; those that the artifact names unless they are given."""
        named = artifact.provenance.get("files", {})
        self.train_files, self.val_files = (
            [Path(each) for each in (given or named.get(side, ()))] for given, side in ((train, "train"), (val, "val"))
        )
        missing = [path for path in (*self.train_files, *self.val_files) if not path.exists()]
        if missing or not self.train_files or not self.val_files:
            what = f"{missing[0]} is not there" if missing else "the artifact names none"
            raise RefereeError(
                f"refining {artifact.folder or 'a model'} needs the frames that it was trained and validated on, but "
                f"{what}: set reward.refine.data (--data of refine run) to a folder with train.pt and val.pt"
            )
        self.train = FrameSet(self.train_files, artifact.spec.cameras)
        self.val = [RewardBinaryDataset(path) for path in self.val_files]

    @classmethod
    def of(cls, artifact: Artifact, folder: Path | None) -> Base:
        """Of the artifact, or of a folder with train.pt and val.pt."""
        return cls(artifact) if folder is None else cls(artifact, [folder / "train.pt"], [folder / "val.pt"])


class Mixed:
    """Frames of the first training and answered ones, in given shares."""

    def __init__(self, base: FrameSet, answered: Labelled, *, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._base, self._answered = base, answered
        first = random.permutation(len(base))[:BASE_FRAMES]
        wanted = SHARE / (1 - SHARE) * len(first)
        times = int(np.clip(round(wanted / max(1, len(answered))), 1, REPEATS))
        again = np.tile(np.arange(len(answered)), times)
        self._rows = np.concatenate([first, len(base) + again])
        labels = np.concatenate([base.labels.numpy()[first], answered.labels[again]])
        self.labels = torch.from_numpy(labels.astype(np.int64))

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, indices: Any) -> tuple[Tensor, Tensor]:
        """Images uint8[n,(V,)H,W,3] and labels int64[n]."""
        chosen = np.asarray(indices)
        rows = self._rows[chosen]
        old = rows < len(self._base)
        images = np.empty((len(rows), *self._answered.images.shape[1:]), np.uint8)
        if old.any():
            found = self._base.batch(rows[old])[0].numpy()
            images[old] = found.reshape(len(found), *images.shape[1:])
        images[~old] = self._answered.images[rows[~old] - len(self._base)]
        views = images[:, 0] if images.shape[1] == 1 else images
        return torch.from_numpy(np.ascontiguousarray(views)), self.labels[torch.from_numpy(chosen)]


@dataclass(frozen=True)
class Compared:
    """Two models on frames that neither learned from."""

    frames: int
    """Recent ones that were drawn evenly from what the policy does."""
    loss: tuple[float, float]
    """Mean negative log-likelihood on them, before and after."""
    accuracy: tuple[float, float]
    """Right answers at their own thresholds."""
    val_auroc: tuple[float, float]
    """On the first validation."""

    @property
    def better(self) -> bool:
        """Whether the new one should judge from now on."""
        return self.loss[1] < self.loss[0] and self.val_auroc[1] >= self.val_auroc[0] - WORSE


@dataclass(frozen=True, eq=False)
class Retrained:
    """A new model beside what it is worth."""

    artifact: Artifact
    compared: Compared
    seconds: dict[str, float] = field(default_factory=dict)


def retrain(
    artifact: Artifact,
    base: Base,
    learn: Labelled,
    recent: Labelled,
    *,
    mode: str,
    steps: int,
    lr: float,
    seed: int,
    threads: int = 0,
    ends: Labelled | None = None,
) -> Retrained:
    """Go on learning from the answers beside frames of the first training; then compare with the model before.

    recent: answered frames that are held out. mode: `terminal` or `per_step`, whose threshold is looked at.
    ends: last states of episodes, drawn evenly; the threshold for such states is chosen on them, too.
    """
    began = time.perf_counter()
    recent = _unseen(recent, base)
    model = copy.deepcopy(artifact.model).train()
    options = FitOptions(
        lr=lr, max_steps=steps, seed=seed, best_metric="train_accuracy", val_check_interval=1_000_000,
        num_threads=threads,
    )  # fmt: skip
    fit(model, ImageSource(Mixed(base.train, learn, seed=seed), options.augment), None, options)
    trained = time.perf_counter()
    new = Artifact(model.eval(), artifact.calibration, dict(artifact.provenance))
    with torch.no_grad():
        judged = [_validated(each, base) for each in (artifact, new)]
        new.calibration = _calibrated(new, judged[1], ends)
        new.reference = _reference(new, base, learn)
    compared = _compare((artifact, new), judged, recent, mode)
    seconds = {"train": trained - began, "audit": time.perf_counter() - trained}
    return Retrained(new, compared, seconds)


def _unseen(recent: Labelled, base: Base) -> Labelled:
    """The held-out frames that are not frames of the first training: those would praise whoever learned them."""
    if not len(recent):
        return recent
    keep = ~np.isin(frame_hashes(recent.images[:, 0]), base.train.fingerprint.hashes)
    return Labelled(recent.images[keep], recent.labels[keep])


def _validated(artifact: Artifact, base: Base) -> list[Judged]:
    """What a model says of the first validation."""
    return [each for part in base.val for each in judge_frames(artifact, part)]


def _calibrated(artifact: Artifact, judged: list[Judged], ends: Labelled | None) -> Calibration:
    """As after the first training; but where last states of the policy's own episodes are known, they have their say.

    Too few of them fail to promise a rate of false alarms: the threshold for last states is where fewest are misjudged.
    """
    choice = calibrate(judged, target=artifact.calibration.target_episode_fpr or TARGET)
    if ends is not None and len(ends):
        labels = np.concatenate([[each.labels[-1] for each in judged], ends.labels])
        logits = np.concatenate([[each.logits[-1] for each in judged], artifact.logits(ends.images)])
        last = fewest_mistakes(labels, logits, temperature=choice.temperature)
        choice = replace(choice, terminal_threshold=last)
    return Calibration(**choice.fields())


def _reference(artifact: Artifact, base: Base, learn: Labelled) -> Reference:
    """Usual frames are now those of the first training and the answered ones."""
    some = evenly(base.train.labels.numpy(), REFERENCE_FRAMES)
    first = base.train.batch(some)[0].numpy().reshape(-1, *learn.images.shape[1:])
    images = np.concatenate([first, learn.images])
    wins = np.concatenate([base.train.labels.numpy()[some], learn.labels]) == 1
    found = Reference.of(embed(artifact.model, images), images, successes=wins)
    part = base.val[0]
    rows = evenly(part.labels.numpy(), VAL_FRAMES)
    usual = part.batch(rows)[0].numpy().reshape(-1, *learn.images.shape[1:])
    return found.calibrated(embed(artifact.model, usual), successes=part.labels.numpy()[rows] == 1)


def _compare(both: tuple[Artifact, Artifact], judged: Sequence[list[Judged]], recent: Labelled, mode: str) -> Compared:
    loss, right, area = [], [], []
    for artifact, val in zip(both, judged, strict=True):
        calibration = artifact.calibration
        logits = artifact.logits(recent.images) if len(recent) else np.zeros(0, np.float32)
        loss.append(nll(recent.labels, logits, calibration.temperature) if len(recent) else float("nan"))
        said = probability(logits, calibration.temperature) >= calibration.threshold_in(mode)
        right.append(float((said == recent.labels).mean()) if len(recent) else float("nan"))
        labels, found = (np.concatenate([getattr(each, name) for each in val]) for name in ("labels", "logits"))
        area.append(auroc(labels, found))
    return Compared(len(recent), (loss[0], loss[1]), (right[0], right[1]), (area[0], area[1]))
