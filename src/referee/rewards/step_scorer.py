"""What a step of n environments is worth to an artifact, wherever the step was made: Gymnasium, Stable-Baselines3, …"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from referee.envs.contract import VOID
from referee.errors import RefereeError
from referee.metrics.gate import check_gate
from referee.models.artifact import Artifact
from referee.models.contract import Verdict, probability_of
from referee.rewards import rules
from referee.rewards.rules import Gate, RewardOptions
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
    def options(self) -> RewardOptions:
        """The same as keys of `reward`; the gate is given separately."""
        return RewardOptions(
            reward_mode=self.mode, reward_type=self.reward_type, success_reward=self.success_reward,
            fail_reward=self.fail_reward, reward_weight=self.reward_weight, env_reward_weight=self.env_reward_weight,
        )  # fmt: skip

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
    """An artifact, and the gate over every environment's episode."""

    def __init__(self, artifact: Artifact, count: int, rules: Rules, *, alarm: bool = False) -> None:
        self.rules = rules
        self.watch = Watch(artifact) if alarm else None
        self.steps = 0
        """Taken so far, of all environments together."""
        self.scored = ScoredBuffer()
        """A sample of the frames that were scored; see `ScoredBuffer.take`."""
        self.frames = 0
        """Scored so far."""
        self._options, self._count = rules.options, count
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
        self.gate = Gate(self._count, *(rules.gate or (calibration.gate_k, calibration.gate_n)))

    def begin(self, rows: np.ndarray) -> None:
        """New episodes: their gates begin again."""
        self.gate.reset(rows)

    def score(
        self, env_rewards: np.ndarray, live: np.ndarray, ended: np.ndarray, stalled: np.ndarray, pictures: See,
        truth: np.ndarray | None = None,
    ) -> StepScore:  # fmt: skip
        """What a step is worth where it was one (`live`); pictures are made only of states that count.

        Where an arm is `stalled`, what is seen may be old: that is no success, and the model is not asked.
        truth: bool[n] of the states, where it is known; it is kept with the scored frames and decides nothing.
        """
        every = self.rules.every_state
        self.steps += int(live.sum())
        due = live if every else live & ended
        judged = rules.usable(due, stalled)
        probability = self._probability(judged, pictures, truth)
        said = np.nan_to_num(probability)
        verdict = Verdict(said, said, probability >= self.threshold)  # never of NaN
        if every:
            verdict = rules.gated_verdict(verdict, np.zeros(self._count, bool), self.gate, stalled)
        success = judged & verdict.success
        terminate = success & self.rules.terminate_on_success
        rewarded = due & (ended | terminate) if self.rules.mode == "terminal" else due
        model = rules.model_rewards(replace(verdict, success=success), self._options, threshold=self.threshold)
        reward = rules.combine(env_rewards, np.where(rewarded, model, 0), self._options, dtype=np.float64)
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


def stalled_in(info: Mapping[str, Any]) -> bool:
    """Whether an info of one environment says that its arm stalled, so that what is seen may be old."""
    return any(info.get(name) is not None for name in VOID)


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
