"""Grows one episode state by state, where its length is not known beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from referee.episodes.episode import Episode, EpisodeError, Meta

State = dict[str, np.ndarray]
"""What is about one state, by its name in `Episode.arrays`: `observations/…`, `signals/…`, `success`."""


def state(
    observation: Mapping[str, Any], success: bool | None = None, signals: Mapping[str, Any] | None = None
) -> State:
    """One state as arrays, copied."""
    named: State = {f"observations/{name}": np.array(value) for name, value in observation.items()}
    named |= {f"signals/{name}": np.array(value) for name, value in (signals or {}).items()}
    return named if success is None else {**named, "success": np.array(bool(success))}


class EpisodeBuilder:
    """`start` with a state, `step` as often as you like, then `build`."""

    def __init__(self, meta: Meta) -> None:
        self.meta = meta
        self.rows: dict[str, list[np.ndarray]] = {}
        """Per name, one entry per state or per step."""

    def __len__(self) -> int:
        return len(self.rows.get("actions", []))

    def start(
        self, observation: Mapping[str, Any], *, success: bool | None = None, signals: Mapping[str, Any] | None = None
    ) -> None:
        """The first state."""
        self.rows = {name: [value] for name, value in state(observation, success, signals).items()}

    def step(
        self,
        action: Any,
        observation: Mapping[str, Any],
        *,
        reward: float = 0.0,
        terminated: bool = False,
        truncated: bool = False,
        success: bool | None = None,
        signals: Mapping[str, Any] | None = None,
    ) -> None:
        """An action and the state that it led to."""
        if not self.rows:
            raise EpisodeError("step() was called before start()")
        new = state(observation, success, signals)
        new["actions"] = np.array(action, np.float32).reshape(-1)
        new["rewards"] = np.array(reward, np.float32)
        new["terminated"], new["truncated"] = np.array(bool(terminated)), np.array(bool(truncated))
        for name, value in new.items():
            self.rows.setdefault(name, []).append(value)

    def build(self) -> Episode:
        """The episode so far; it needs one step at least."""
        try:
            arrays = {name: np.stack(values) for name, values in self.rows.items()}
        except ValueError as error:
            raise EpisodeError(f"an array changes its shape within an episode ({error})") from error
        return Episode.from_arrays(arrays, self.meta).validate()
