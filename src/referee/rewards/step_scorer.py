"""What a step of n environments is worth to an artifact, wherever the step was made: Gymnasium, Stable-Baselines3, …"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from referee.errors import RefereeError
from referee.metrics.gate import check_gate
from referee.models.artifact import Artifact
from referee.models.contract import Verdict, probability_of
from referee.rewards.arithmetic import RewardOptions, model_rewards
from referee.rewards.scored import ScoredBuffer
from referee.rewards.watch import Watch

Mode = Literal["per_step", "terminal"]
RewardType = Literal["binary", "continuous"]
See = Callable[[np.ndarray], np.ndarray]
"""From ids of environments to their pictures [m,H,W,3] or [m,V,H,W,3]."""
_log = logging.getLogger(__name__)
TRUTH_KEYS = ("success", "is_success")
Success = str | Callable[[Mapping[str, Any]], Any] | None
"""Where an info tells true success: a key, or a function of the info; None: `success` or `is_success`."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """From verdicts to rewards: `env_reward_weight · env + reward_weight · model`."""

    mode: Mode = "terminal"
    """Pay for every state that a step leads to, or for the last one of an episode."""
    reward_type: RewardType = "binary"
    """The model pays `success_reward` or `fail_reward`; or its probability, and 0 below the threshold."""
    threshold: float | None = None
    """Of the probability; the artifact's own unless given."""
    gate: tuple[int, int] | None = None
    """k and n: a success is one in at least k of the last n states; the artifact's own unless given.

    It acts where every state is judged: with `per_step`, and with `terminate_on_success`.
    """
    success_reward: float = 1.0
    fail_reward: float = 0.0
    reward_weight: float = 1.0
    env_reward_weight: float = 0.0
    terminate_on_success: bool = False
    """End an episode where the gate says success. A vector env that resets by itself must know `reset_mask`."""

    def __post_init__(self) -> None:
        for name, allowed in (("mode", get_args(Mode)), ("reward_type", get_args(RewardType))):
            if getattr(self, name) not in allowed:
                raise RefereeError(f"{name} is {getattr(self, name)!r}, but it can be {' or '.join(allowed)}")
        for name in ("success_reward", "fail_reward", "reward_weight", "env_reward_weight"):
            if not math.isfinite(getattr(self, name)):
                raise RefereeError(f"{name} is {getattr(self, name)}, but a finite number is needed")
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise RefereeError(f"threshold is {self.threshold}, but a probability in 0..1 is needed")
        if self.gate is not None:
            try:
                check_gate(*self.gate)
            except ValueError as error:
                raise RefereeError(f"gate: {error}") from error
            if not self.every_state:
                raise RefereeError(
                    "gate changes nothing in terminal mode, where one state is judged: leave it out, or choose "
                    "mode='per_step' or terminate_on_success=True"
                )

    @property
    def every_state(self) -> bool:
        """Whether the model judges every state, not only last ones."""
        return self.mode == "per_step" or self.terminate_on_success


@dataclass(frozen=True)
class StepScore:
    """About one step of n environments; probability is NaN and success False where the model was not asked."""

    reward: np.ndarray
    probability: np.ndarray
    success: np.ndarray
    judged: np.ndarray
    terminate: np.ndarray


class StepScorer:
    """An artifact, and what it said of the last n states of every environment's episode."""

    def __init__(self, artifact: Artifact, count: int, rules: Rules, *, alarm: bool = False) -> None:
        self.rules = rules
        self.watch = Watch(artifact) if alarm else None
        self.steps = 0
        """Taken so far, of all environments together."""
        self.scored = ScoredBuffer()
        """A sample of the frames that were scored; see `ScoredBuffer.take`."""
        self.frames = 0
        """Scored so far."""
        self._options = RewardOptions(
            reward_mode=rules.mode, reward_type=rules.reward_type, success_reward=rules.success_reward,
            fail_reward=rules.fail_reward,
        )  # fmt: skip
        self._count = count
        self._recent = np.zeros((count, 1), bool)
        self.swap(artifact)

    def swap(self, artifact: Artifact) -> None:
        """Let another model score from now on, with its own threshold and gate; gates begin again."""
        calibration, rules = artifact.calibration, self.rules
        if self.watch is not None:
            self.watch.take(artifact)
        if artifact.doubt:
            _log.warning("the reward model %s: %s", artifact.folder or "given", artifact.doubt)
        self.artifact = artifact
        self.threshold = calibration.threshold_in(rules.mode) if rules.threshold is None else rules.threshold
        self.k, n = rules.gate or (calibration.gate_k, calibration.gate_n)
        self._recent = np.zeros((self._count, n), bool)

    def begin(self, rows: np.ndarray) -> None:
        """New episodes: their gates begin again."""
        self._recent[rows] = False

    def score(
        self, env_rewards: np.ndarray, live: np.ndarray, ended: np.ndarray, stalled: np.ndarray, pictures: See,
        truth: np.ndarray | None = None,
    ) -> StepScore:  # fmt: skip
        """What a step is worth where it was one (`live`); pictures are made only of states that count.

        Where an arm is `stalled`, what is seen may be old: that is no success, and the model is not asked.
        truth: bool[n] of the states, where it is known; it is kept with the scored frames and decides nothing.
        """
        rules = self.rules
        self.steps += int(live.sum())
        due = live if rules.every_state else live & ended
        judged = due & ~stalled
        probability = self._probability(judged, pictures, truth)
        success = probability >= self.threshold  # never of NaN
        if rules.every_state:
            self._recent[due] = np.column_stack([self._recent[due, 1:], success[due]])
            success = judged & (self._recent.sum(axis=1) >= self.k)
        terminate = success & rules.terminate_on_success
        verdict = Verdict(np.nan_to_num(probability), np.nan_to_num(probability), success)
        worth = model_rewards(verdict, self._options, threshold=self.threshold).astype(np.float64)
        rewarded = due & (ended | terminate) if rules.mode == "terminal" else due
        reward = np.where(rewarded, rules.reward_weight * worth, 0.0)
        if rules.env_reward_weight:  # else not even NaN comes through
            reward = reward + rules.env_reward_weight * env_rewards
        return StepScore(reward, probability, success, judged, terminate)

    def _probability(self, judged: np.ndarray, pictures: See, truth: np.ndarray | None) -> np.ndarray:
        """f32[count], NaN where the model is not asked."""
        probability = np.full(len(judged), np.nan, np.float32)
        if judged.any():
            rows = np.flatnonzero(judged)
            images = pictures(rows)
            logits, summary = self.artifact.seen(images)
            probability[rows] = probability_of(logits, self.artifact.calibration.temperature)
            views = images if images.ndim == 5 else images[:, None]
            self.scored.add(views, summary, probability[rows], None if truth is None else truth[rows])
            self.frames += len(rows)
            if self.watch is not None:
                self.watch.add(views, summary, probability[rows], step=self.steps, threshold=self.threshold)
        return probability


def truth_of(info: Mapping[str, Any], success: Success = None) -> Any | None:
    """What an info tells of true success: `success` or `is_success` unless said otherwise; None if it tells nothing.

    An info without the key that was given is refused.
    """
    if callable(success):
        return success(info)
    if success is not None and success not in info:
        raise RefereeError(
            f"info of step() has no {success!r} (success=), only {', '.join(map(str, info)) or 'nothing'}"
        )
    keys = TRUTH_KEYS if success is None else (success,)
    return next((info[key] for key in keys if key in info), None)
