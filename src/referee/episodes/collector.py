"""Collects `.npy` trajectories from the outputs of any loop, for those who step environments themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from referee.episodes.episode import WHOLE_SUCCESS, EpisodeError, Meta
from referee.episodes.formats import aligned, observations
from referee.episodes.formats.npy import NpyWriter


class RewardDataCollector:
    """Keeps the frames and labels of each environment until its episode ends, then writes one trajectory.

    An env output holds `obs` with images (by the names in `image_keys`, or `main_images`), `success_frame` and `dones`,
    one row per environment; its frame is about the state that `success_frame` is about.
    """

    def __init__(
        self,
        positive_dir: Path | str,
        negative_dir: Path | str,
        image_keys: Sequence[str] = ("base_camera",),
        max_positive_trajectories: int | None = None,
        max_negative_trajectories: int | None = None,
    ) -> None:
        self.image_keys = tuple(image_keys)
        self._writer = NpyWriter(
            positive_dir,
            negative_dir,
            max_positive=max_positive_trajectories,
            max_negative=max_negative_trajectories,
        )
        self._frames: dict[int, list[dict[str, np.ndarray]]] = {}
        self._labels: dict[int, list[bool | None]] = {}
        self._succeeded: dict[int, bool] = {}

    def add_env_output(
        self, env_output: Mapping[str, Any], env_info: Mapping[str, Any] | None = None, is_last_step: bool = False
    ) -> list[Path]:
        """Take in one frame of every environment; returns the files of the trajectories that ended with it.

        With `is_last_step`, all of them end. A trajectory is positive if `success_once` of `env_info` was true for it,
        or if any `success_frame` is at least 0.5. `success_once` also labels the last frame of a trajectory whose
        frames have no label of their own; it changes no label that is there.
        """
        observation = env_output["obs"]
        images = {key: np.asarray(observation[key if key in observation else "main_images"]) for key in self.image_keys}
        count = len(next(iter(images.values())))
        labels = env_output.get("success_frame")
        success = [None] * count if labels is None else (np.asarray(labels, float).reshape(-1) >= 0.5).tolist()
        once = (
            np.zeros(count, bool) if env_info is None else np.asarray(env_info.get("success_once", [0] * count), bool)
        )
        done = np.asarray(env_output.get("dones", np.zeros(count)), bool).reshape(-1) | is_last_step
        for i in range(count):
            self._frames.setdefault(i, []).append({key: value[i] for key, value in images.items()})
            self._labels.setdefault(i, []).append(success[i])
            self._succeeded[i] = self._succeeded.get(i, False) or bool(once.reshape(-1)[i])
        return [path for i in np.flatnonzero(done) if (path := self.save_trajectory(int(i))) is not None]

    def save_trajectory(self, env_idx: int) -> Path | None:
        """Write what is there of one environment; None if there are enough trajectories of its kind."""
        frames, given = self._frames.pop(env_idx, []), self._labels.pop(env_idx, [])
        succeeded = self._succeeded.pop(env_idx, False)
        if len(frames) < 2:
            raise EpisodeError(f"environment {env_idx} has {len(frames)} frames: a trajectory needs two at least")
        observed = observations.Observed()
        stacked = {
            key: np.stack([observations.picture(frame[key], key) for frame in frames]) for key in self.image_keys
        }
        observations.place(observed, stacked)
        labels = np.array([bool(label) for label in given])
        if all(label is None for label in given):
            labels[-1] = succeeded
        extra = {WHOLE_SUCCESS: True} if succeeded and not labels.any() else {}
        meta = Meta(cameras=observed.cameras, env=env_idx, extra=extra)
        return self._writer.append(aligned.assemble(observed.arrays, meta, success=labels))
