"""From a verdict to what a policy is paid: mapping, combination, bonus; the table is in docs/rewards.md."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from referee.errors import RefereeError
from referee.models.contract import Verdict

CHOICES = {
    "reward_mode": ("per_step", "terminal", "history_buffer"),
    "reward_type": ("binary", "continuous", "score"),
    "below_threshold": ("zero", "keep"),
    "combine_mode": ("weighted", "replace", "add"),
    "terminate_on": ("never", "model", "truth"),
}
NUMBERS = ("success_reward", "fail_reward", "reward_weight", "env_reward_weight", "gt_success_bonus")


@dataclass(frozen=True)
class RewardOptions:
    """How verdicts become rewards, as plain values; the names are those of the keys under `reward`."""

    reward_mode: str = "terminal"
    """Pay for every state (`per_step`), for the last one of an episode (`terminal`), or for windows of them."""
    reward_type: str = "binary"
    success_reward: float = 1.0
    """Of `binary`."""
    fail_reward: float = 0.0
    reward_threshold: float | None = None
    """A frame is a success where its probability is at least this; None is the artifact's own."""
    below_threshold: str = "zero"
    """Of `continuous`: a probability below the threshold becomes 0, or is the reward as it is (`keep`)."""
    combine_mode: str = "weighted"
    reward_weight: float = 1.0
    env_reward_weight: float = 0.0
    """Of `weighted`."""
    gt_success_bonus: float = 0.0
    """Paid where the ground truth is success; anything but 0 means that the reward is not learned alone."""
    terminate_on: str = "never"
    """Who ends an episode before its time is up: the model's gated success, the ground truth, or nobody."""
    gate_k: int | None = None
    """So many of the last `gate_n` states must be successes; None is the artifact's own."""
    gate_n: int | None = None
    veto_unknown: bool = False
    """A frame that is called a success but is unlike the successes the model knows is none."""

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise RefereeError(f"reward.{name} is {getattr(self, name)!r}: use {' or '.join(allowed)}")
        for name in NUMBERS:
            if not _is_number(getattr(self, name)):
                raise RefereeError(f"reward.{name} is {getattr(self, name)!r}, but a finite number is needed")
        share = self.reward_threshold
        if share is not None and not (_is_number(share) and 0 <= share <= 1):
            raise RefereeError(f"reward.reward_threshold is {share!r}: give a probability in 0..1, or null")
        for name in ("gate_k", "gate_n"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise RefereeError(f"reward.{name} is {value!r}: give a whole number from 1 on, or null")
            if value is not None and not self.gate_acts:
                raise RefereeError(
                    f"reward.{name} changes nothing with reward_mode={self.reward_mode}, "
                    f"reward_type={self.reward_type}, terminate_on={self.terminate_on}: leave it out"
                )

    @property
    def gate_acts(self) -> bool:
        """Whether a gate over time decides anything: what a step pays, or when an episode ends."""
        return self.terminate_on == "model" or (self.reward_mode == "per_step" and self.reward_type == "binary")


def model_rewards(verdict: Verdict, options: RewardOptions, *, threshold: float) -> np.ndarray:
    """f32, in the shape of the verdict: what the model pays, before any weight.

    `binary`: success_reward or fail_reward; `continuous`: the probability, 0 where it is below `threshold` unless
    `below_threshold` keeps it; `score`: the score.
    """
    if options.reward_type == "binary":
        success = _needed(verdict.success, "success", "binary")
        return np.where(success, options.success_reward, options.fail_reward).astype(np.float32)
    if options.reward_type == "continuous":
        probability = np.asarray(_needed(verdict.probability, "probability", "continuous"), np.float32)
        kept = (probability >= np.float32(threshold)) | (options.below_threshold == "keep")
        return np.where(kept, probability, np.float32(0))
    return np.asarray(verdict.score, np.float32)


def combine(
    env_rewards: np.ndarray,
    model_rewards: np.ndarray,
    options: RewardOptions,
    *,
    true_success: np.ndarray | None = None,
) -> np.ndarray:
    """f32: what the policy is paid, before any bootstrap value; all arrays have one shape.

    `replace`: reward_weight·m; `add`: env + reward_weight·m; `weighted`: env_reward_weight·env + reward_weight·m.
    An environment's reward of weight 0 is not looked at, so that it can change nothing at all.
    true_success: bool, where `gt_success_bonus` is due; needed only with a bonus.
    """
    env_weight = {"replace": 0.0, "add": 1.0, "weighted": options.env_reward_weight}[options.combine_mode]
    total = options.reward_weight * np.asarray(model_rewards, np.float64)
    if env_weight:
        total = total + env_weight * _same_shape(env_rewards, total, "rewards of the environment")
    if options.gt_success_bonus:
        if true_success is None:
            raise RefereeError("reward.gt_success_bonus needs the true success, which nobody gave: set it to 0")
        total = total + options.gt_success_bonus * _same_shape(true_success, total, "true successes")
    return total.astype(np.float32)


def ends_episode(options: RewardOptions, *, model: np.ndarray | None, truth: np.ndarray | None) -> np.ndarray | None:
    """bool[n]: the episodes that end now, as `terminate_on` says; None with `never`.

    model: whether the gate fires; truth: whether the state is a true success.
    """
    if options.terminate_on == "never":
        return None
    found = model if options.terminate_on == "model" else truth
    if found is None:
        what = "the model says no success" if options.terminate_on == "model" else "there is no ground truth"
        raise RefereeError(f"reward.terminate_on is {options.terminate_on}, but {what}: use never")
    return np.asarray(found, bool)


def _needed(array: np.ndarray | None, what: str, reward_type: str) -> np.ndarray:
    if array is None:
        raise RefereeError(
            f"reward.reward_type is {reward_type}, but the model gives no {what}: use reward_type=score, "
            "or a model that gives one"
        )
    return array


def _same_shape(array: Any, other: np.ndarray, what: str) -> np.ndarray:
    found = np.asarray(array, np.float64)
    if found.shape != other.shape:
        raise RefereeError(f"{what} have the shape {list(found.shape)}, those of the model {list(other.shape)}")
    return found


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
