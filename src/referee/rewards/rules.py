"""From scores to rewards, in one place: mapping, combination, bonus, gate, streak and stalled arm; see docs/rewards.md.

The Trainer, `RewardModelWrapper`, Stable-Baselines3, teleoperation and the server all call these functions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from referee.errors import RefereeError
from referee.metrics.gate import check_gate
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
    dtype: type[np.floating[Any]] = np.float32,
) -> np.ndarray:
    """f32, or as `dtype` says: the reward of each step, before any bootstrap value; all arrays have one shape.

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
    return total.astype(dtype)


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


# --- the stalled arm ---


def usable(states: np.ndarray, stalled: np.ndarray | None) -> np.ndarray:
    """bool: those of the states in which no arm stalled; whatever a model says of the others, it saw old pictures."""
    return states if stalled is None else states & ~stalled


def withhold(verdict: Verdict, stalled: np.ndarray | None) -> Verdict:
    """The verdict of a failure where an arm stalled: score and probability 0, no success. stalled: of its shape."""
    if stalled is None or not stalled.any():
        return verdict
    counts = usable(np.ones(stalled.shape, bool), stalled)
    return Verdict(
        np.where(counts, verdict.score, np.float32(0)),
        None if verdict.probability is None else np.where(counts, verdict.probability, np.float32(0)),
        None if verdict.success is None else verdict.success & counts,
    )


# --- over time ---


def gated(success: np.ndarray, began: np.ndarray, gate: Gate, stalled: np.ndarray | None = None) -> np.ndarray:
    """bool: where the gate fires, of one state per environment [N] or of a rollout [T,N]; never where an arm stalled.

    success: of the states by themselves. began: where a state is the first of its episode.
    """
    success = usable(success, stalled)
    fires = gate.step(success, began) if success.ndim == 1 else gate.steps(success, began)
    return usable(fires, stalled)


def gated_verdict(verdict: Verdict, began: np.ndarray, gate: Gate, stalled: np.ndarray | None = None) -> Verdict:
    """The verdict with the success of the gate, and that of a failure where an arm stalled."""
    verdict = withhold(verdict, stalled)
    if verdict.success is None:
        return verdict
    return replace(verdict, success=gated(verdict.success, began, gate, stalled))


def streak(count: np.ndarray, fires: np.ndarray, needed: int) -> tuple[np.ndarray, np.ndarray]:
    """Successes in a row by now i64[N], and where they are enough to end an episode bool[N]. count: before."""
    count = (count + 1) * fires
    return count, count >= needed


def first_streak(success: np.ndarray, needed: int) -> int | None:
    """Steps until so many successive ones of bool[T] were a success; None if they never are."""
    run = 0
    for step, good in enumerate(success, 1):
        run = run + 1 if good else 0
        if run == needed:
            return step
    return None


class Gate:
    """Remembers the last n states of every environment's episode; fires where at least k of them are successes.

    A state that has not been yet is no success: near the start of an episode, too, k are needed.
    """

    def __init__(self, num_envs: int, k: int, n: int) -> None:
        try:
            check_gate(k, n)
        except ValueError as error:
            raise RefereeError(f"reward.gate_k and reward.gate_n: {error}") from error
        self.k, self.n = k, n
        self._recent = np.zeros((num_envs, n), bool)
        """Oldest first."""

    def step(self, success: np.ndarray, began: np.ndarray) -> np.ndarray:
        """bool[N]: whether the gate fires now.

        success: bool[N] of the present states; began: bool[N], where that state is the first of its episode.
        """
        self.reset(began)
        self._recent[:, :-1] = self._recent[:, 1:]
        self._recent[:, -1] = success
        return self._recent.sum(axis=1) >= self.k

    def steps(self, success: np.ndarray, began: np.ndarray) -> np.ndarray:
        """bool[T,N]: what T calls of `step` would say and leave behind, at once."""
        success, began = np.asarray(success, bool), np.asarray(began, bool)
        if success.shape != began.shape or success.shape[1:] != (len(self._recent),):
            raise RefereeError(
                f"successes {list(success.shape)} and beginnings {list(began.shape)} must be [T,{len(self._recent)}]"
            )
        if not len(success):
            return success
        seen = np.concatenate([self._recent.T, success])  # [n+T,N]: what was remembered, then what is new
        time = np.arange(self.n, len(seen))[:, None]
        start = np.maximum.accumulate(np.where(began, time, 0), axis=0)  # 0: the episode began before
        before = np.concatenate([np.zeros_like(seen[:1], np.int64), np.cumsum(seen, axis=0)])
        oldest = np.maximum(start, time + 1 - self.n)
        count = before[self.n + 1 :] - np.take_along_axis(before, oldest, axis=0)
        last = np.arange(len(success), len(seen))[:, None]
        self._recent = (seen[-self.n :] & (last >= start[-1])).T.copy()
        return count >= self.k

    def reset(self, mask: np.ndarray | None = None) -> None:
        """Forget the episodes of some environments, or of all."""
        self._recent[slice(None) if mask is None else np.asarray(mask, bool)] = False

    def save_state(self) -> dict[str, np.ndarray]:
        """Everything that later answers depend on."""
        return {"recent": self._recent.copy()}

    def restore_state(self, state: dict[str, np.ndarray]) -> None:
        """Go on from a saved state, of as many environments and the same n."""
        found = state.get("recent")
        if found is None or found.shape != self._recent.shape:
            shape = "missing" if found is None else list(found.shape)
            raise RefereeError(f"the saved gate is {shape}, but {list(self._recent.shape)} (environments, n) is needed")
        self._recent[:] = found


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
