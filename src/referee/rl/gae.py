"""Generalised advantage estimation over whole rollouts, correct at episode ends."""

from __future__ import annotations

import numpy as np


def gae(
    rewards: np.ndarray,
    values: np.ndarray,
    next_values: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    *,
    gamma: float,
    gae_lambda: float,
    bootstrap_type: str = "standard",
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and returns, f32[T,N].

    rewards, values: of step t and of the state before it, f32[T,N].
    next_values: of the state after step t in its *own* episode, also where that episode ended (final observation).
    terminated, truncated: bool[T,N].
    bootstrap_type: `standard` counts the future of a truncated episode only; `always` also that of a terminated
        one, as if it could have gone on; `never` none at all, as where the last state is paid for what was reached.
    """
    ended = terminated | truncated
    future = {"standard": ~terminated, "always": np.ones_like(ended), "never": ~ended}[bootstrap_type]
    deltas = rewards + gamma * next_values * future - values
    advantages = np.empty_like(deltas)
    carried = np.zeros(rewards.shape[1], deltas.dtype)
    for t in reversed(range(len(rewards))):
        carried = deltas[t] + gamma * gae_lambda * carried * ~ended[t]
        advantages[t] = carried
    return advantages, advantages + values
