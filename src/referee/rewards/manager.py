"""The reward manager: an artifact that judges observations in mini-batches and says what they pay."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from referee.errors import RefereeError
from referee.models import Artifact, Verdict
from referee.models.contract import select_views
from referee.rewards import rules
from referee.rewards.debug import VerdictPictures
from referee.rewards.rules import Gate, RewardOptions

MICRO_BATCH = 256
DEBUG_VARIABLE = "DEBUG_IMAGE_SAVE_DIR"


class RewardManager:
    """Scores observations with an artifact; counts the frames and the seconds that it took."""

    def __init__(
        self,
        artifact: Artifact | Path | str | None,
        options: RewardOptions | None = None,
        *,
        backend: str = "torch",
        int8: bool = False,
        device: str | torch.device = "cpu",
        micro_batch: int = MICRO_BATCH,
        debug_save_dir: Path | str | None = None,
    ) -> None:
        """Load the artifact, and compare the back end with it.

        artifact: an artifact, or where one lies. Another back end is used by the artifact itself from now on.
        backend: one of `backends.BACKENDS`, or auto: where every state is judged on a CPU, the fastest that is
            installed and agrees with torch; for the few frames of terminal mode it is not worth its start.
        micro_batch: frames that are taken out of observations and scored at once.
        debug_save_dir: where some of the judged frames go as pictures; else the variable DEBUG_IMAGE_SAVE_DIR says so.
        """
        if artifact is None or artifact == "":
            raise RefereeError(
                "reward.model.model_path is not given: name the artifact that pays (a reward is never random)"
            )
        if micro_batch < 1:
            raise RefereeError(f"mini-batches of {micro_batch} frames cannot be: use 1 or more")
        self.artifact = artifact if isinstance(artifact, Artifact) else Artifact.open(artifact)
        self.options = options or RewardOptions()
        self.seconds = 0.0
        """Spent on scoring so far, in this process."""
        self.frames = 0
        """Scored so far."""
        self.version = 0
        """How many models have judged before this one."""
        self.latest: tuple[np.ndarray, np.ndarray] = np.zeros((0, 0), np.float32), np.zeros(0, np.float32)
        """Summaries f32[n,e] and probabilities f32[n] of the frames that were judged last, for an alarm."""
        self._micro_batch, self._backend, self._int8, self._device = micro_batch, backend, int8, device
        self._prepare()
        folder = debug_save_dir or os.environ.get(DEBUG_VARIABLE)
        self._pictures = VerdictPictures(Path(folder)) if folder else None

    def swap(self, artifact: Artifact, version: int) -> None:
        """Let another model judge from now on, with the same back end and on the same device."""
        self.artifact, self.version = artifact, version
        self._prepare()

    def _prepare(self) -> None:
        self.gate(1)  # refused now rather than in the first rollout
        reference = self.artifact.reference
        if self.options.veto_unknown and (reference is None or not reference.knows_successes):
            raise RefereeError(
                f"{self.artifact.folder or 'the artifact'} does not say what its successes look like, so "
                "reward.veto_unknown has nothing to compare with: train it again, with validation"
            )
        if self._backend != "torch" or self._int8:
            if self._backend != "auto":
                self.artifact.use(self._backend, int8=self._int8)
            elif self._judges_all and reference is not None and torch.device(self._device).type == "cpu":
                self.artifact.use("auto")
        self.to_device(self._device)

    @property
    def _judges_all(self) -> bool:
        return self.options.reward_mode == "per_step"

    @property
    def threshold(self) -> float:
        """The probability from which a frame is a success: `reward_threshold`, or the artifact's own for the mode."""
        chosen = self.options.reward_threshold
        return self.artifact.calibration.threshold_in(self.options.reward_mode) if chosen is None else float(chosen)

    def gate(self, num_envs: int) -> Gate:
        """A fresh gate for so many environments: `gate_k` of `gate_n`, or the artifact's own."""
        own, options = self.artifact.calibration, self.options
        return Gate(num_envs, options.gate_k or own.gate_k, options.gate_n or own.gate_n)

    def to_device(self, device: str | torch.device) -> None:
        """Move the model."""
        try:
            if self._backend == "auto" and torch.device(device).type != "cpu":
                if self.artifact.reference is not None:
                    self.artifact.use("torch")
            elif self._backend != "torch" and torch.device(device).type != "cpu":
                raise RefereeError(f"the {self._backend} back end scores on cpu, not on {device}: use backend=torch")
            self.artifact.model.to(device)
            self._device = device
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise RefereeError(f"the reward model cannot go to device {device} ({reason}): use cpu") from error

    def compute_rewards(
        self, observations: Mapping[str, np.ndarray], *, cameras: Sequence[str] | None = None
    ) -> np.ndarray:
        """f32[n]: what the model pays for each of n observations by itself, before weights and without a gate."""
        return self.pay(self.judge(observations, cameras=cameras))

    def pay(self, verdict: Verdict) -> np.ndarray:
        """f32: what the model pays for a verdict, in its shape."""
        return rules.model_rewards(verdict, self.options, threshold=self.threshold)

    def judge(self, observations: Mapping[str, np.ndarray], *, cameras: Sequence[str] | None = None) -> Verdict:
        """The verdict on n observations, each by itself, at `threshold`.

        observations: as environments give them, or {camera: images}; see `select_views` for `cameras`.
        """
        began = time.perf_counter()
        images = {name: observations[name] for name in self._image_names(observations)}
        count = len(next(iter(images.values()))) if images else 0
        pieces = []
        for start in range(0, max(1, count), self._micro_batch):
            part = {name: array[start : start + self._micro_batch] for name, array in images.items()}
            views = select_views({**observations, **part}, self.artifact.spec.cameras, cameras)
            pieces.append(self.artifact.seen(views, self._micro_batch))
        logits, summary = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        if not np.isfinite(logits).all():
            place = int(np.flatnonzero(~np.isfinite(logits))[0])
            raise RefereeError(
                f"the reward model says {logits[place]} of frame {place}: its weights or pixels are broken"
            )
        verdict = Verdict.of(logits, temperature=self.artifact.calibration.temperature, threshold=self.threshold)
        assert verdict.probability is not None and verdict.success is not None
        self.latest = summary, verdict.probability
        if self.options.veto_unknown and verdict.success.any():
            verdict = replace(verdict, success=self._known(verdict.success, summary))
        self.frames += count
        self.seconds += time.perf_counter() - began
        if self._pictures is not None and count:
            self._save_pictures(self._pictures, images, verdict, cameras)
        return verdict

    def _known(self, success: np.ndarray, summary: np.ndarray) -> np.ndarray:
        """bool[n]: the successes without those that are unlike the known ones."""
        assert self.artifact.reference is not None  # `_prepare` saw to it
        found, rows = success.copy(), np.flatnonzero(success)
        found[rows] = ~self.artifact.reference.unknown(summary[rows])
        return found

    def _image_names(self, observations: Mapping[str, np.ndarray]) -> list[str]:
        """What the model looks at in the observations, all of one length."""
        wanted = (*self.artifact.spec.cameras, "main_images", "extra_view_images")
        names = [name for name in dict.fromkeys(wanted) if name in observations]
        lengths = {name: len(observations[name]) for name in names}
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{count} of {name}" for name, count in lengths.items())
            raise RefereeError(f"the observations hold {found}: as many of each are needed")
        return names

    def _save_pictures(
        self,
        pictures: VerdictPictures,
        images: Mapping[str, np.ndarray],
        verdict: Verdict,
        cameras: Sequence[str] | None,
    ) -> None:
        assert verdict.success is not None and verdict.probability is not None  # a classifier's
        rows = pictures.choose(verdict.success)
        views = select_views({name: array[rows] for name, array in images.items()}, self.artifact.spec.cameras, cameras)
        pictures.save(rows, np.asarray(views), verdict.probability, verdict.success)
