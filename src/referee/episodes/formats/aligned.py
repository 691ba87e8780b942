"""How older layouts become states and steps: said once, for every format.

An episode has T+1 states and T steps; step i leads from state i to state i+1. A label is about the very state that it
stands beside. Older files have n frames, and a frame can mean three things:

    state only    `.npy` trajectories, pictures     frame i is state i; nothing is known about the steps
    arrival       `.pkl` with `frames`              frame i is state i and the step that led to it
    departure     as many actions as observations   frame i is state i and the step that left it

Each gives n states and n-1 steps. Of arrivals the first step is left out, since the state before it was not recorded
(files of our own begin with the reset state, which has no such step); of departures the last one, since the state after
it was not. That this last step ended the episode is kept: the step before it then ends it.

Files with one list per field (`.pkl` with `observations`, n of them) need no choice: n-1 entries are about the steps; n
entries are about the states, so that entry i+1 is about step i and entry 0 belongs to the reset. Only where there are n
actions too, all lists are departures.

What a file does not hold is filled in: actions of width 0, rewards of 0, an end by truncation, no labels; and
`meta.extra["missing"]` names it. Where nothing but the reset state lacks a label, it is no success; where any other
state lacks one, the episode counts as unlabelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from referee.episodes.episode import Episode, EpisodeError, Meta

LEFT_OUT, LAST_ACTION = "left_out", "last action"
"""In `Meta.extra`: that the last row of a file was about a step whose result is not there."""


def of_steps(values: Sequence[Any], states: int, what: str, *, departures: bool = False) -> Sequence[Any]:
    """The entries of a list that are about the steps between `states` states."""
    if len(values) == states - 1:
        return values
    if len(values) == states:
        return values[:-1] if departures else values[1:]
    raise EpisodeError(
        f"{what} has {len(values)} entries for {states} observations: {states - 1} or {states} are needed"
    )


def of_states(values: Sequence[Any], states: int, what: str) -> list[Any]:
    """The entries of a list that are about the states; None for the first where it begins with the first step."""
    if len(values) == states - 1:
        return [None, *values]
    if len(values) == states:
        return list(values)
    raise EpisodeError(
        f"{what} has {len(values)} entries for {states} observations: {states - 1} or {states} are needed"
    )


def labels(values: Sequence[bool | None]) -> np.ndarray | None:
    """bool[T+1] of what was said about each state, or None where too little was said."""
    if any(value is None for value in values[1:]):
        return None
    return np.array([bool(value) for value in values], bool)


def ends(values: Sequence[bool], states: int, what: str, *, departures: bool = False) -> np.ndarray:
    """bool[T] of flags that may end an episode; one that stands at a step that is left out moves to the step before."""
    flags = np.array(of_steps(values, states, what, departures=departures), bool)
    if departures and len(values) == states and values[-1] and len(flags):
        flags[-1] = True
    return flags


def assemble(
    observations: dict[str, np.ndarray],
    meta: Meta,
    *,
    actions: np.ndarray | None = None,
    rewards: np.ndarray | None = None,
    terminated: np.ndarray | None = None,
    truncated: np.ndarray | None = None,
    success: np.ndarray | None = None,
    signals: Mapping[str, np.ndarray] | None = None,
) -> Episode:
    """A valid episode; what is None was not in the file."""
    if not observations:
        raise EpisodeError("holds no observations")
    steps = len(next(iter(observations.values()))) - 1
    if steps < 1:
        raise EpisodeError("holds one state only, but an episode needs two")
    given = {"actions": actions, "rewards": rewards, "terminated": terminated, "truncated": truncated}
    if missing := [name for name, array in (given | {"success": success}).items() if array is None]:
        meta = replace(meta, extra={**meta.extra, "missing": missing})
    if terminated is None:
        terminated = np.zeros(steps, bool)
    if truncated is None:
        truncated = (np.arange(steps) == steps - 1) & ~terminated
    return Episode(
        observations,
        np.zeros((steps, 0), np.float32) if actions is None else actions,
        np.zeros(steps, np.float32) if rewards is None else rewards,
        terminated,
        truncated,
        success,
        dict(signals or {}),
        meta,
    ).validate()
