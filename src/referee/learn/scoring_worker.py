"""A scoring worker: a reward model that scores frames for others, in a process of its own."""

from __future__ import annotations

import os

import torch

from referee.learn.batch import RolloutBatch
from referee.models.packed import Packed
from referee.rewards import FinalPictures, RewardManager, RewardOptions
from referee.rewards.source import RemoteScores


class ScoringWorker:
    """Keeps nothing but the model, which comes with each request: one that died is made anew, and asked again."""

    def __init__(self, options: RewardOptions, *, backend: str, int8: bool, threads: int) -> None:
        self._options, self._backend, self._int8, self._threads = options, backend, int8, threads
        self._manager: RewardManager | None = None

    def score(self, batch: RolloutBatch, cameras: tuple[str, ...], model: Packed, version: int) -> RemoteScores | None:
        """What the model of this version says of what was drawn, by these cameras; None of nothing."""
        drawn: FinalPictures | dict[str, object] = batch.drawn
        if isinstance(drawn, FinalPictures):
            pictures = drawn.pictures()
        else:
            pictures = {
                name: images.reshape(-1, *images.shape[2:]) for name, images in batch.drawn.items() if images.size
            }
        if not pictures:
            return None
        manager = self._model(model, version)
        before = manager.seconds
        torch.set_num_threads(self._threads)
        try:
            verdict = manager.judge(pictures, cameras=cameras)
        finally:
            torch.set_num_threads(1)
        return RemoteScores(verdict, manager.latest, version, manager.seconds - before)

    def pid(self) -> int:
        """Of the process that it lives in."""
        return os.getpid()

    def _model(self, model: Packed, version: int) -> RewardManager:
        if self._manager is None:
            self._manager = RewardManager(model.unpacked(), self._options, backend=self._backend, int8=self._int8)
            self._manager.version = version
        elif self._manager.version != version:
            self._manager.swap(model.unpacked(), version)
        return self._manager
