"""From what windows are worth to what steps are paid."""

from __future__ import annotations

import numpy as np

from referee.errors import RefereeError
from referee.rewards.history import Windows

ASSIGN = ("end", "once", "sum")


def pay_windows(
    windows: Windows, rewards: np.ndarray, shape: tuple[int, int], *, assign: str, interval_reward: float
) -> tuple[np.ndarray, np.ndarray]:
    """What each step of a rollout is paid f32[T,N], and whether some window pays for it bool[T,N].

    rewards: f32[m], of the windows. shape: T, N.
    assign: `end` pays the step that led to the last frame. `once` pays every step between the frames of a window;
        one that several windows judged is paid once, their mean. `sum` pays it for each of them.
    interval_reward: for steps that no window pays for.

    Steps of an earlier rollout that a window reaches back to were paid with that rollout, and stay so.
    """
    if assign not in ASSIGN:
        raise RefereeError(f"reward.history_reward_assign is {assign!r}: use {', '.join(ASSIGN)}")
    rewards = np.asarray(rewards, np.float64)
    if rewards.shape != (len(windows),):
        raise RefereeError(f"{list(rewards.shape)} rewards do not fit {len(windows)} windows")
    total, count = np.zeros(shape), np.zeros(shape, np.int64)
    judged = np.maximum(windows.lengths - 1, 1) if assign != "end" else np.ones(len(windows), np.int64)
    for back in range(int(judged.max(initial=0))):
        some = (judged > back) & (windows.steps >= back)
        places = windows.steps[some] - back, windows.envs[some]
        np.add.at(total, places, rewards[some])
        np.add.at(count, places, 1)
    paid = count > 0
    if assign != "sum":
        total[paid] /= count[paid]
    return np.where(paid, total, interval_reward).astype(np.float32), paid
