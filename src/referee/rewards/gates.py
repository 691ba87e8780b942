"""The k-of-n gate over time for many environments: step by step, or over whole rollouts, with the same answer."""

from __future__ import annotations

import numpy as np

from referee.errors import RefereeError
from referee.metrics.gate import check_gate


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
