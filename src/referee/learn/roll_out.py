"""Episodes with a policy: what happened, counted fairly, and filmed if wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from referee.envs import Observation, RefereeVectorEnv
from referee.envs.contract import void_steps
from referee.envs.policies import Policy
from referee.metrics import Rate
from referee.pictures import GREEN, GREY, atomic_save, banner, contact_sheet
from referee.rewards import RewardManager, TruthBeside, rules

Tell = Callable[[Mapping[str, np.ndarray], np.ndarray], None]
"""Hears of pictures {camera: [n,…]} that were judged, and of the truth bool[n] about them."""


@dataclass
class Outcomes:
    """Finished episodes, one entry each."""

    success_at_end: list[bool] = field(default_factory=list)
    success_once: list[bool] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.returns)

    def rate(self, *, once: bool = False) -> Rate:
        """Share of episodes whose last frame (or any frame) was a success."""
        flags = self.success_once if once else self.success_at_end
        return Rate(sum(flags), len(flags))

    def summary(self) -> dict[str, float | int | list[float]]:
        """Plain numbers, for a JSON file."""
        end, once = self.rate(), self.rate(once=True)
        return {
            "episodes": len(self),
            "success_at_end": end.share,
            "success_at_end_interval": list(end.interval),
            "success_once": once.share,
            "success_once_interval": list(once.interval),
            "return": float(np.mean(self.returns)),
            "length": float(np.mean(self.lengths)),
        }


def roll_out(
    env: RefereeVectorEnv,
    policy: Policy,
    episodes: int,
    *,
    seed: int,
    watch: Callable[[RefereeVectorEnv, np.ndarray, np.ndarray], None] | None = None,
    observe: Callable[[Observation], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Outcomes:
    """Run `episodes` episodes, the same number (±1) in every environment.

    Taking the first ones to finish instead would favour short episodes, which are the successes where success ends
    an episode. `watch(env, success, done)` sees every state, `observe(observation)` every observation before the policy
    acts on it, and `progress(n)` hears of n newly finished episodes.
    """
    outcomes = Outcomes()
    left = np.full(env.num_envs, episodes // env.num_envs)
    left[: episodes % env.num_envs] += 1
    observation, info = env.reset(seed=seed)
    once = info["success"].copy()
    returns, lengths = np.zeros(env.num_envs), np.zeros(env.num_envs, int)
    while left.any():
        if observe is not None:
            observe(observation)
        observation, rewards, terminated, truncated, info = env.step(policy())
        done = terminated | truncated
        ended_in = info["final_info"]["success"] if done.any() else info["success"]
        success = np.where(done, ended_in, info["success"])
        once |= success
        returns += rewards
        lengths += 1
        if isinstance(watch, EvalScorer):  # of an arm that held, nobody knows what the last picture shows
            watch(env, success, rules.usable(done, np.asarray(void_steps(info))))
        elif watch is not None:
            watch(env, success, done)
        counted = np.flatnonzero(done & (left > 0))
        for i in counted:
            outcomes.success_at_end.append(bool(success[i]))
            outcomes.success_once.append(bool(once[i]))
            outcomes.returns.append(float(returns[i]))
            outcomes.lengths.append(int(lengths[i]))
        left[counted] -= 1
        if progress is not None:
            progress(len(counted))
        once[done] = info["success"][done]
        returns[done], lengths[done] = 0.0, 0
    return outcomes


class EvalScorer:
    """Hears what a reward model says about the last state of each episode, beside the truth."""

    def __init__(
        self,
        manager: RewardManager,
        cameras: tuple[str, ...],
        tell: Tell | None = None,
        guard: AbstractContextManager[Any] | None = None,
    ) -> None:
        """guard: held while the model is used, where others use it at the same time."""
        self.truth = TruthBeside()
        self._manager, self._cameras, self._tell = manager, cameras, tell
        self._guard = nullcontext() if guard is None else guard

    def __call__(self, env: RefereeVectorEnv, success: np.ndarray, done: np.ndarray) -> None:
        """See a step."""
        ids = np.flatnonzero(done)
        if not len(ids):
            return
        pictures = env.render_cameras(ids, final=True, cameras=self._cameras)
        with self._guard:
            said = self._manager.judge(pictures, cameras=self._cameras).success
            if said is not None:
                self.truth.add(said, success[ids])
            if self._tell is not None:
                self._tell(pictures, success[ids])


class FilmMaker:
    """Films the first episode of some environments, side by side in time, each labelled with its truth."""

    def __init__(self, env: RefereeVectorEnv, episodes: int, *, pixels: int = 300) -> None:
        self._pixels = pixels
        self._rolling = list(range(min(episodes, env.num_envs)))
        self._frames: dict[int, list[np.ndarray]] = {i: [] for i in self._rolling}

    def __call__(self, env: RefereeVectorEnv, success: np.ndarray, done: np.ndarray) -> None:
        """Take the present frame of every episode that is still filmed."""
        world = env.unwrapped
        for i in list(self._rolling):
            frame = world.render_film([i], final=bool(done[i]), pixels=self._pixels)[0]
            text, colour = ("success", GREEN) if success[i] else ("not yet", GREY)
            self._frames[i].append(banner(frame, text, colour))
            if done[i]:
                self._rolling.remove(i)

    def frames(self) -> list[np.ndarray]:
        """The film: one episode after the other, each held for a moment at its end."""
        film: list[np.ndarray] = []
        for frames in self._frames.values():
            film += frames + frames[-1:] * 12
        return film

    def strips(self, columns: int) -> list[list[np.ndarray]]:
        """`columns` frames of each episode, evenly spaced, first and last included."""
        picks = [np.linspace(0, len(frames) - 1, columns).round().astype(int) for frames in self._frames.values()]
        return [[frames[i] for i in pick] for pick, frames in zip(picks, self._frames.values(), strict=True)]


def save_strip(path: Path, film: FilmMaker, *, title: str, columns: int = 6) -> None:
    """A PNG with one row of frames per filmed episode."""
    rows = [(f"episode {i}", frames) for i, frames in enumerate(film.strips(columns))]
    headings = ["start", *[""] * (columns - 2), "end"]
    atomic_save(contact_sheet(rows, headings, title=title, tile=180), path)
