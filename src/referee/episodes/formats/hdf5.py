"""Imports HDF5 files in robomimic's layout: `data/demo_k/{obs/<key>, next_obs/<key>, actions, rewards, dones}`.

Keys of `obs` that hold uint8[T,H,W,3] are cameras, named after their key. Vectors become one array `states`, joined in
the order of their names; `meta.extra` lists them, and what was neither. Where `next_obs` is there, its last row is the
final state: T+1 states and T steps. Without it T rows are T states and T-1 steps, and the last action is dropped; all
rewards are kept as the signal `row_rewards`. The task is the sentence of the demo (`ep_meta`), of the file
(`problem_info`), or the name of the environment (`env_args`). Success is unknown until a labels file or the rewards
say it (see `frame_labels` and `step_success`); an episode is named by its group, as `demo_0`. Only the file itself is
read: links and data that lead out of it are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from referee.episodes.episode import Episode, EpisodeError, Meta
from referee.episodes.formats.aligned import LAST_ACTION, LEFT_OUT, assemble, ends
from referee.episodes.formats.frames import check_size, naming, stack_views
from referee.episodes.formats.step_success import ROW_REWARDS
from referee.optional import require

_MAX_NAMES = 1_000_000
_MAX_TEXT = 1000


def read(path: Path, *, cameras: Sequence[str] | None = None) -> Iterator[Episode]:
    """The episodes of a file, in the order of their numbers; with `cameras`, only those views, in that order."""
    return _File(path, cameras).episodes()


def names(path: Path) -> list[str]:
    """What the episodes of a file are called, without reading them."""
    file = _File(path, None)
    file.close()
    return file.names


class _File:
    """An open HDF5 file that is not trusted."""

    def __init__(self, path: Path, cameras: Sequence[str] | None) -> None:
        self.path, self.cameras = path, cameras
        self._h5py = require("h5py", extra="hdf5", what="reading HDF5 files")
        with naming(path):
            self._file = self._h5py.File(path, "r")
            self.data = self._inside(self._file, "data", self._h5py.Group)
            self.names = sorted(self._names(self.data), key=_order)
            if not self.names:
                raise EpisodeError("has no episodes in data/")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def episodes(self) -> Iterator[Episode]:
        """All of them."""
        with self._file:
            for number, name in enumerate(self.names):
                where = self.path / "data" / name
                with np.errstate(over="ignore", invalid="ignore"), naming(where):
                    demo = self._inside(self.data, name, self._h5py.Group)
                    states = self._states(demo)
                    rows = len(next(iter(states.values())))
                    actions, rewards, dones = (self._steps(demo, key, rows) for key in ("actions", "rewards", "dones"))
                    images = {key: states[key] for key in self._chosen(states)}
                    vectors = {key: value for key, value in states.items() if value.ndim == 2}
                    observations = stack_views(images)
                    if vectors:
                        observations["states"] = np.concatenate([*vectors.values()], axis=1).astype(np.float32)
                    extra: dict[str, Any] = {
                        "name": name,
                        "states": [[key, value.shape[1]] for key, value in vectors.items()],
                        "skipped": [key for key in self._names(demo["obs"]) if key not in states],
                    }
                    if actions is not None and len(actions) == rows:
                        extra[LEFT_OUT] = LAST_ACTION
                    task, description = self._task(demo)
                    episode = assemble(
                        observations,
                        Meta(
                            task=task, description=description, source=str(self.path), cameras=tuple(images),
                            episode=number, extra=extra,
                        ),
                        actions=None if actions is None else actions[: rows - 1].astype(np.float32),
                        rewards=None if rewards is None else rewards[: rows - 1, 0].astype(np.float32),
                        terminated=None
                        if dones is None
                        else ends(dones[:, 0].tolist(), rows, "dones", departures=True),
                        signals={} if rewards is None or len(rewards) < rows else {ROW_REWARDS: rewards[:, 0]},
                    )  # fmt: skip
                yield episode

    def _task(self, demo: Any) -> tuple[str, str]:
        """The name of the environment and the task in words, where the file says them."""
        sentence = _text(demo, "ep_meta", "lang") or _text(self.data, "problem_info", "language_instruction")
        return _text(self.data, "env_args", "env_name"), sentence

    def _states(self, demo: Any) -> dict[str, np.ndarray]:
        """Pictures [N,H,W,3] and vectors [N,d] by their keys."""
        here, after = self._observations(demo, "obs"), self._observations(demo, "next_obs")
        rows = next(len(each) for each in here.values())
        check_size(rows + 1, sum(each.nbytes for each in here.values()) // max(1, rows))
        has_final = after.keys() >= here.keys()
        if rows + has_final < 2:
            raise EpisodeError("has too few frames: an episode needs two")
        found = {key: np.asarray(each[...]) for key, each in here.items()}
        if has_final:
            found = {key: np.concatenate([value, after[key][-1:]]) for key, value in found.items()}
        return {key: value if value.ndim == 4 else value.reshape(len(value), -1) for key, value in found.items()}

    def _steps(self, demo: Any, key: str, states: int) -> np.ndarray | None:
        """What is about steps, as rows: as many as there are steps, or one for each state."""
        if not self._has(demo, key):
            return None
        each = self._checked(self._inside(demo, key, self._h5py.Dataset))
        if each.ndim not in (1, 2) or len(each) not in (states - 1, states):
            raise EpisodeError(f"{key} has {list(each.shape)}, which does not fit {states} states")
        return np.asarray(each[...]).reshape(len(each), -1)

    def _observations(self, demo: Any, group: str) -> dict[str, Any]:
        """The datasets of `obs` that are pictures or vectors, all with the same number of rows."""
        if group == "next_obs" and not self._has(demo, group):
            return {}
        inside = self._inside(demo, group, self._h5py.Group)
        found: dict[str, Any] = {}
        for key in sorted(self._names(inside)):
            each = self._inside(inside, key, self._h5py.Dataset)
            picture = each.ndim == 4 and each.dtype == np.uint8 and each.shape[-1] == 3
            if picture or each.ndim in (1, 2):
                found[key] = self._checked(each)
        if not found or len({len(each) for each in found.values()}) > 1:
            raise EpisodeError(f"{group} has no pictures or vectors, or different numbers of rows")
        return found

    def _checked(self, dataset: Any) -> Any:
        """A dataset of numbers that lie in this file and fit into memory."""
        if dataset.dtype.kind not in "biuf" or dataset.dtype.itemsize > 8:
            raise EpisodeError(f"{dataset.name} holds {dataset.dtype}, but numbers are needed")
        if dataset.external or dataset.is_virtual:
            raise EpisodeError(f"{dataset.name} keeps its data in other files, which are not opened")
        rows = max(1, len(dataset))
        check_size(rows, dataset.nbytes // rows)
        return dataset

    def _inside(self, group: Any, name: str, kind: Any) -> Any:
        """A member that is really in this file."""
        if not self._has(group, name):
            raise EpisodeError(f"has no {name}")
        if group.id.links.get_info(name.encode()).type != self._h5py.h5l.TYPE_HARD:
            raise EpisodeError(f"{name} is a link, which is not followed")
        member = group[name]
        if not isinstance(member, kind):
            raise EpisodeError(f"{name} is not a {kind.__name__.lower()}")
        return member

    def _has(self, group: Any, name: str) -> bool:
        return bool(group.id.links.exists(name.encode()))  # `name in group` would follow a link

    def _names(self, group: Any) -> list[str]:
        if len(group) > _MAX_NAMES:
            raise EpisodeError(f"has {len(group)} entries in {group.name}")
        return list(group)

    def _chosen(self, states: dict[str, np.ndarray]) -> list[str]:
        images = [key for key, value in states.items() if value.ndim == 4]
        if self.cameras is None:
            return images
        if unknown := [name for name in self.cameras if name not in images]:
            raise EpisodeError(f"has no camera {unknown[0]!r}: it has {', '.join(images) or 'none'}")
        return list(self.cameras)


def _text(group: Any, attribute: str, key: str) -> str:
    """A text out of an attribute that holds a JSON object; empty where it is not there."""
    try:
        value = json.loads(group.attrs[attribute]) if attribute in group.attrs else None
    except (TypeError, ValueError, RecursionError, OSError):
        return ""
    text = value.get(key) if isinstance(value, dict) else None
    return text.strip()[:_MAX_TEXT] if isinstance(text, str) else ""


def _order(name: str) -> list[tuple[int, str]]:
    """demo_2 before demo_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
