"""Deferred scoring: whole rollouts are judged after they were made, in few large batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from referee.errors import RefereeError
from referee.models.contract import Verdict
from referee.rewards import rules
from referee.rewards.rules import Gate

Draw = Callable[[np.ndarray], Mapping[str, np.ndarray]]
"""Pictures of the last states of episodes that ended in the latest step, of environments int[m], in that order."""
Judge = Callable[[Mapping[str, np.ndarray]], Verdict]
"""Pictures of n frames → their verdict; `RewardManager.judge`."""
Pay = Callable[[Verdict], np.ndarray]
"""A verdict → model rewards f32 of its shape; `RewardManager.pay`."""


@dataclass(frozen=True, eq=False)
class Scores:
    """What the model says of a rollout of T steps of N environments."""

    rewards: np.ndarray
    """f32[T,N]: model rewards; 0 where nothing was judged."""
    judged: np.ndarray
    """bool[T,N]: where a state was judged; in terminal mode, the ends of episodes."""
    success: np.ndarray | None
    """bool[T,N]: what the model calls success (gated in per-step mode); None where it does not say."""
    probability: np.ndarray | None
    """f32[T,N]; nan where nothing was judged."""
    version: int = 0
    """Of the model that said it."""
    seconds: float = 0.0
    """Spent on scoring, in whichever process, and also where it was done while the rollout was made."""

    def seconds_per_step(self, shares: int = 1) -> float:
        """Seconds of scoring per step of all environments.

        shares: into which these are divided, if this is the rollout of one; the mean over all shares is their sum.
        """
        return shares * self.seconds / len(self.rewards)


@dataclass(frozen=True)
class RolloutFrames:
    """Frames of a rollout that a reward model scored, of the states that steps led to."""

    where: np.ndarray
    """bool[T,N]"""
    frames: np.ndarray
    """uint8[m,V,H,W,3], in the order of `where`, row by row."""

    @classmethod
    def joined(cls, parts: Sequence[RolloutFrames]) -> RolloutFrames:
        """Of rollouts that were made side by side, as of one."""
        where = np.concatenate([part.where for part in parts], axis=1)
        places = [np.stack(np.nonzero(part.where), axis=1) for part in parts]
        first = np.cumsum([0, *(part.where.shape[1] for part in parts)])
        order = np.concatenate([at[:, 0] * where.shape[1] + at[:, 1] + start
                                for at, start in zip(places, first, strict=False)])  # fmt: skip
        some = [part.frames for part in parts if len(part.frames)]
        frames = np.concatenate(some)[np.argsort(order)] if some else parts[0].frames
        return cls(where, frames)

    @cached_property
    def numbers(self) -> np.ndarray:
        """int[T,N]: which of the frames is of that step, where there is one."""
        return np.cumsum(self.where).reshape(self.where.shape) - 1


class FinalPictures:
    """Pictures of the last states of episodes; drawn in the step in which they end, and kept until they are scored.

    An environment with autoreset can end several episodes in one rollout: each has its own step here.
    """

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self.begin()

    def begin(self) -> None:
        """Forget the last rollout."""
        self._steps: list[np.ndarray] = []
        self._envs: list[np.ndarray] = []
        self._pictures: list[Mapping[str, np.ndarray]] = []

    def copy(self) -> FinalPictures:
        """The same pictures, with nobody who draws more."""
        other = FinalPictures(_nobody)
        other._steps, other._envs, other._pictures = list(self._steps), list(self._envs), list(self._pictures)
        return other

    def add(self, step: int, ended: np.ndarray) -> None:
        """Draw what ended in this step; call it right after the step, before the next one. ended: bool[N]"""
        ids = np.flatnonzero(ended)
        if not len(ids):
            return
        pictures = self._draw(ids)
        for name, images in pictures.items():
            if len(images) != len(ids):
                raise RefereeError(f"{len(images)} pictures {name} were drawn of {len(ids)} episodes that ended")
        self._steps.append(np.full(len(ids), step))
        self._envs.append(ids)
        self._pictures.append(pictures)

    def __len__(self) -> int:
        return sum(map(len, self._envs))

    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps int[m] and environments int[m] of the episodes that ended, in the order of `pictures`."""
        nothing = np.zeros(0, np.int64)
        return np.concatenate([nothing, *self._steps]), np.concatenate([nothing, *self._envs])

    def pictures(self) -> dict[str, np.ndarray]:
        """{name: [m,…]} of all of them."""
        names = self._pictures[0] if self._pictures else {}
        return {name: np.concatenate([each[name] for each in self._pictures]) for name in names}


def _nobody(ids: np.ndarray) -> Mapping[str, np.ndarray]:
    raise RefereeError("these pictures were drawn elsewhere, and no more can be added")


def score_finals(
    finals: FinalPictures, shape: tuple[int, int], *, judge: Judge, pay: Pay, held: np.ndarray | None = None
) -> Scores:
    """Terminal mode: the model's reward at the steps at which episodes ended, 0 at all others.

    shape: T, N of the rollout. One picture is judged per episode, so no gate over time is applied. held: bool[T,N],
    where an arm stalled, see `withhold`.
    """
    rewards, judged = np.zeros(shape, np.float32), np.zeros(shape, bool)
    success, probability = np.zeros(shape, bool), np.full(shape, np.nan, np.float32)
    if not len(finals):
        return Scores(rewards, judged, success, probability)
    places = finals.places()
    verdict = rules.withhold(judge(finals.pictures()), None if held is None else held[places])
    rewards[places] = pay(verdict)
    judged[places] = True
    if verdict.success is not None:
        success[places] = verdict.success
    if verdict.probability is not None:
        probability[places] = verdict.probability
    return Scores(
        rewards,
        judged,
        None if verdict.success is None else success,
        None if verdict.probability is None else probability,
    )


def score_steps(
    observations: Mapping[str, np.ndarray], ended: np.ndarray, *, judge: Judge, pay: Pay, gate: Gate,
    held: np.ndarray | None = None,
) -> Scores:  # fmt: skip
    """Per-step mode: the model's reward for the state that each step led to.

    observations: {name: [T,N,…]} of these states; where an episode ended, of its own last state, not of the next
        episode's first.
    ended: bool[T,N], where the step was the last of its episode.
    gate: of N environments; it remembers episodes that go on in the next rollout.
    held: bool[T,N], where an arm stalled, see `withhold`; the gate never fires there.
    """
    ended = np.asarray(ended, bool)
    for name, images in observations.items():
        if images.shape[:2] != ended.shape:
            raise RefereeError(
                f"{name} are of {list(images.shape[:2])} steps and environments, not {list(ended.shape)}"
            )
    rows = {name: images.reshape(ended.size, *images.shape[2:]) for name, images in observations.items()}
    return pay_steps(judge(rows), ended, pay=pay, gate=gate, held=held)


def pay_steps(verdict: Verdict, ended: np.ndarray, *, pay: Pay, gate: Gate, held: np.ndarray | None = None) -> Scores:
    """The same for states that were judged already: the verdict is that of T·N states, [T,N] or in one row."""
    shape = np.shape(ended)
    parts = (None if each is None else np.reshape(each, shape)
             for each in (verdict.score, verdict.probability, verdict.success))  # fmt: skip
    began = np.zeros(shape, bool)
    began[1:] = ended[:-1]
    found = rules.gated_verdict(Verdict(*parts), began, gate, held)  # type: ignore[arg-type]
    if len(ended):
        gate.reset(ended[-1])
    return Scores(np.asarray(pay(found), np.float32), np.ones(shape, bool), found.success, found.probability)
