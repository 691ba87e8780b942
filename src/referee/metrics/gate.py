"""The gate over time: a success counts when at least k of the last n states say so."""

from __future__ import annotations

import numpy as np


def check_gate(k: int, n: int) -> None:
    """Refuse a gate that could never fire, or that looks at nothing."""
    if not 1 <= k <= n:
        raise ValueError(f"a gate of {k} of {n} cannot be: 1 <= k <= n is needed")


def gate(success: np.ndarray, k: int, n: int) -> np.ndarray:
    """bool[..., T]: whether at least k of the last n states, this one included, are a success.

    Near the start there are fewer than n states to look at, and still k are needed. Time is the last axis.
    """
    check_gate(k, n)
    return counts(success, n) >= k


def counts(success: np.ndarray, n: int) -> np.ndarray:
    """int[..., T]: how many of the last n states are a success."""
    total = np.cumsum(np.asarray(success, bool), axis=-1)
    result = total.copy()
    result[..., n:] -= total[..., :-n]
    return result


def gate_level(values: np.ndarray, k: int, n: int) -> np.ndarray:
    """[..., T]: the k-th largest of the last n values; -inf while there are fewer than k.

    The gate on `values >= threshold` fires exactly where this is at or above the threshold: so all thresholds can be
    looked at together.
    """
    check_gate(k, n)
    values = np.asarray(values)
    padding = np.full((*values.shape[:-1], n - 1), -np.inf, values.dtype)
    windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([padding, values], axis=-1), n, axis=-1)
    return np.sort(windows, axis=-1)[..., n - k]


def first(fires: np.ndarray) -> np.ndarray:
    """int[...]: the first state at which it fires; -1 for never."""
    fires = np.asarray(fires, bool)
    return np.where(fires.any(axis=-1), fires.argmax(axis=-1), -1)
