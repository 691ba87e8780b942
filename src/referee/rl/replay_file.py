"""A replay on disk: what is new since the last time is one more file, so that saving costs what happened since.

Each file is written whole or not at all, with a checksum. One that is broken is dropped, and that is said: the steps in
it are forgotten, nothing else.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from referee import checksums, files
from referee.rl.replay import EMPTY, STEP, Replay

SUFFIX, SUM = ".safetensors", "page_sum"
_log = logging.getLogger(__name__)


class ReplayFiles:
    """The folder of a replay. `save` and `restore` give and take the marks that a checkpoint keeps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._next = 0
        self._saved: np.ndarray | None = None

    def save(self, replay: Replay) -> dict[str, np.ndarray]:
        """Write what is new; returns the marks: how far it was, and in how many files."""
        saved = np.zeros_like(replay.count) if self._saved is None else self._saved
        first = np.maximum(saved, replay.count + 1 - replay.length)
        serials = [np.arange(start, stop + 1) for start, stop in zip(first, replay.count, strict=True)]
        rows = np.repeat(np.arange(replay.num_envs), [len(each) for each in serials])
        serial = np.concatenate(serials)
        slots = serial % replay.length
        arrays = {name: np.ascontiguousarray(column[rows, slots]) for name, column in replay.columns().items()}
        shown = np.flatnonzero(arrays["picture"] >= 0)
        if replay.album is not None and len(shown):
            arrays["frames"] = replay.album.take(arrays["picture"][shown])
        arrays |= {"row": rows, "serial": serial}
        path = self.folder / f"{self._next:06d}{SUFFIX}"
        self.folder.mkdir(parents=True, exist_ok=True)
        with files.replacing(path) as temporary:
            save_file(arrays, temporary, metadata={SUM: _sum_of(arrays)})
        self._next += 1
        self._saved = replay.count.copy()
        return self.marks(replay)

    def marks(self, replay: Replay) -> dict[str, np.ndarray]:
        """What `restore` needs."""
        return {"count": replay.count.copy(), "files": np.array(self._next)}

    def load(self, replay: Replay, marks: dict[str, np.ndarray]) -> int:
        """Remember again what was saved by the time of the marks; returns how many steps that is."""
        replay.clear(*np.nonzero(replay.kind))
        replay.count[:] = marks["count"]
        for path in self._files():
            if _number(path) < int(marks["files"]):
                self._take(path, replay)
        _forget_what_leads_nowhere(replay)
        replay.praise()
        return replay.steps

    def restore(self, replay: Replay, marks: dict[str, np.ndarray]) -> int:
        """The same, and go on from there in this folder: what was saved later is removed."""
        wanted = int(marks["files"])
        for path in self._files():
            if _number(path) >= wanted:
                path.unlink()
        files.remove_left(self.folder / f"{wanted:06d}{SUFFIX}")
        found = self.load(replay, marks)
        self._next, self._saved = wanted, replay.count.copy()
        return found

    def prune(self, replay: Replay) -> None:
        """Remove files of which the replay holds nothing any more."""
        oldest = replay.count + 1 - replay.length
        for path in self._files()[:-1]:
            try:
                with safe_open(path, "numpy") as file:
                    rows, serial = file.get_tensor("row"), file.get_tensor("serial")
            except (OSError, SafetensorError):
                continue
            if (serial >= oldest[rows]).any():
                break
            path.unlink()

    def _files(self) -> list[Path]:
        return sorted(path for path in self.folder.glob(f"*{SUFFIX}") if not path.name.startswith("."))

    def _take(self, path: Path, replay: Replay) -> None:
        try:
            with safe_open(path, "numpy") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
                sums = file.metadata() or {}
            if sums.get(SUM, sums.get("sha256")) != (_sum_of(arrays) if SUM in sums else _sha256(arrays)):
                raise ValueError("its checksum is wrong")
            arrays.setdefault("held", np.zeros(len(arrays["row"]), bool))  # files of before it was kept
            columns = replay.columns()
            for name, column in columns.items():
                if arrays[name].shape[1:] != column.shape[2:] or arrays[name].dtype != column.dtype:
                    raise ValueError(f"{name} are {arrays[name].dtype}{list(arrays[name].shape[1:])}")
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            _log.warning("%s is broken (%s): the steps in it are forgotten", path, error)
            return
        rows, serial = arrays.pop("row"), arrays.pop("serial")
        new = (serial > replay.count[rows] - replay.length) & (serial <= replay.count[rows])
        frames, shown = arrays.pop("frames", None), arrays["picture"] >= 0
        numbers = np.full(len(rows), -1, np.int32)
        rows, slots = rows[new], serial[new] % replay.length
        replay.clear(rows, slots)
        if frames is not None and replay.album is not None:
            numbers[shown & new] = replay.album.add(frames[new[shown]])
        for name, column in columns.items():
            column[rows, slots] = numbers[new] if name == "picture" else arrays[name][new]
        replay.steps += int((arrays["kind"][new] == STEP).sum())


def _number(path: Path) -> int:
    return int(path.name.removesuffix(SUFFIX))


def _forget_what_leads_nowhere(replay: Replay) -> None:
    """A step whose next state was in a broken file cannot be learned from."""
    following = np.roll(replay.kind, -1, axis=1)
    lost = (replay.kind == STEP) & (following == EMPTY)
    replay.kind[lost] = EMPTY
    replay.steps -= int(lost.sum())


def _sum_of(arrays: dict[str, np.ndarray]) -> str:
    contents = {name: np.ascontiguousarray(array).reshape(-1).view(np.uint8) for name, array in arrays.items()}
    each = [f"{name}{arrays[name].shape}{checksums.page_sum(contents[name].data)}" for name in sorted(arrays)]
    return checksums.page_sum("".join(each).encode())


def _sha256(arrays: dict[str, np.ndarray]) -> str:
    """The checksum in files of older versions."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode() + str(arrays[name].shape).encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()
