"""Some of the frames that a model judges, as PNG files by verdict, for people who want to see what is paid."""

from __future__ import annotations

import logging
import re
from collections import deque
from pathlib import Path

import numpy as np
from PIL import Image

from referee.errors import RefereeError
from referee.pictures import atomic_save

_log = logging.getLogger(__name__)
KEPT = 200
"""Files of each kind; the oldest make room."""
PER_BATCH = 4
"""Pictures of each kind that one call of the model leaves: writing them must not take the time of scoring."""
FOLDERS = {True: "resnet_success", False: "resnet_fail"}
NAME = re.compile(r"(\d{6,})_prob[01]\.\d{4}\.png")


class VerdictPictures:
    """`resnet_success/000012_prob0.9876.png` and `resnet_fail/…`; the number counts all frames that were judged."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._broken = folder, False
        self._files: dict[bool, deque[Path]] = {}
        self._next = 0
        for success, name in FOLDERS.items():
            try:
                (folder / name).mkdir(parents=True, exist_ok=True)
                found = {path: NAME.fullmatch(path.name) for path in (folder / name).iterdir()}
            except OSError as error:
                raise RefereeError(
                    f"cannot write debug pictures to {folder} ({error}): choose another folder"
                ) from error
            numbers = {path: int(match[1]) for path, match in found.items() if match}
            self._files[success] = deque(sorted(numbers, key=lambda path: numbers[path]))
            self._next = max([self._next, *(number + 1 for number in numbers.values())])
        if count := sum(map(len, self._files.values())):
            _log.warning("%s holds %d debug pictures already: new ones are numbered on, the oldest go", folder, count)

    def choose(self, success: np.ndarray) -> np.ndarray:
        """int[m]: which of the judged frames bool[n] to save: a few of each kind, spread evenly."""
        kinds = [np.flatnonzero(success), np.flatnonzero(~success)]
        return np.concatenate(
            [kind[np.linspace(0, len(kind) - 1, min(PER_BATCH, len(kind))).astype(int)] for kind in kinds]
        )

    def save(self, rows: np.ndarray, images: np.ndarray, probability: np.ndarray, success: np.ndarray) -> None:
        """Write the chosen rows int[m] of a batch: images [m,H,W,3] or [m,V,H,W,3], probability and success [n]."""
        first, self._next = self._next, self._next + len(success)
        for row, image in zip(rows.tolist(), images, strict=True):
            if self._broken:
                return
            self._write(bool(success[row]), f"{first + row:06d}_prob{probability[row]:.4f}.png", image)

    def _write(self, success: bool, name: str, image: np.ndarray) -> None:
        path = self._folder / FOLDERS[success] / name
        try:
            atomic_save(Image.fromarray(_as_picture(image)), path)
        except OSError as error:
            # A full disk must not end a training run for the sake of pictures.
            _log.warning("cannot write %s (%s): no more debug pictures are written", path, error)
            self._broken = True
            return
        kept = self._files[success]
        kept.append(path)
        while len(kept) > KEPT:
            kept.popleft().unlink(missing_ok=True)


def _as_picture(image: np.ndarray) -> np.ndarray:
    """uint8[H,W,3]; several views stand side by side."""
    pixels = image if image.dtype == np.uint8 else (np.asarray(image) * 255).round().astype(np.uint8)
    return np.ascontiguousarray(pixels if pixels.ndim == 3 else np.concatenate(list(pixels), axis=1))
