"""Replay: what happened in each environment, in its order, every state and every picture kept once.

A row per environment is a ring of slots. A slot is a state; where an action followed, it is also the step from this
state to the next slot's. An episode's last state has a slot without a step, and so has the present one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from referee.envs.contract import Observation, join_views, split_views
from referee.errors import RefereeError
from referee.rl.album import Album
from referee.rl.policy import Tensors
from referee.rl.rollout import Rollout

Judge = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Frames uint8[n,V,H,W,3] in the order in which they were lived, bool[n], where an episode begins among them, and
bool[n], where an arm held in them → what the model pays, f32[n]."""
Mix = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""The environment's rewards, the model's, and where the truth is a judged success → what is paid, f32[n]."""
COLUMNS = ("kind", "states", "actions", "rewards", "env_rewards", "terminated", "truth", "held", "version", "picture")
EMPTY, STEP, END, CUT = 0, 1, 2, 3
"""What a slot is: nothing; a state with a step; an episode's last state; a state after which nothing is known (yet)."""


@dataclass(frozen=True)
class Transitions:
    """A sample: n-step transitions as tensors."""

    before: Tensors
    actions: torch.Tensor
    rewards: torch.Tensor
    """f32[n]: discounted, up to `after`."""
    after: Tensors
    discounts: torch.Tensor
    """f32[n]: what the value of `after` counts; 0 where there is no future."""
    good: torch.Tensor
    """bool[n]: steps of demonstrations, and of episodes whose last step was paid."""

    def __len__(self) -> int:
        return len(self.actions)

    def chunks(self, size: int) -> list[Transitions]:
        """The same in pieces of `size`, as views."""
        return [
            Transitions(
                {name: each[rows] for name, each in self.before.items()}, self.actions[rows], self.rewards[rows],
                {name: each[rows] for name, each in self.after.items()}, self.discounts[rows], self.good[rows],
            )
            for rows in (slice(start, start + size) for start in range(0, len(self), size))
        ]  # fmt: skip

    @classmethod
    def joined(cls, parts: Sequence[Transitions]) -> Transitions:
        """All of them, one after the other."""
        return cls(
            {name: torch.cat([part.before[name] for part in parts]) for name in parts[0].before},
            torch.cat([part.actions for part in parts]),
            torch.cat([part.rewards for part in parts]),
            {name: torch.cat([part.after[name] for part in parts]) for name in parts[0].after},
            torch.cat([part.discounts for part in parts]),
            torch.cat([part.good for part in parts]),
        )


class Replay:
    """A ring of slots per environment."""

    def __init__(
        self,
        num_envs: int,
        capacity: int,
        *,
        state_size: int,
        action_size: int,
        album: Album | None,
        seen: bool = False,
        shown: bool = False,
    ) -> None:
        """capacity: steps, of all environments together. seen: whether the pictures are what the policy observes.

        shown: whether all that comes here was demonstrated.
        """
        if capacity < 2 * num_envs:
            raise RefereeError(f"a replay of {capacity} steps is too small for {num_envs} environments")
        self.album, self.seen, self.shown = album, seen, shown
        shape = (num_envs, -(-capacity // num_envs) + 2)
        self.kind = np.zeros(shape, np.uint8)
        self.states = np.zeros((*shape, state_size), np.float32)
        self.actions = np.zeros((*shape, action_size), np.float32)
        self.rewards = np.zeros(shape, np.float32)
        """What is paid for the step: learned, or the environment's own."""
        self.env_rewards = np.zeros(shape, np.float32)
        self.terminated = np.zeros(shape, bool)
        self.truth = np.zeros(shape, bool)
        """Whether the step led to a true success: for a bonus that is asked for, and for logs."""
        self.held = np.zeros(shape, bool)
        """Whether an arm held in the step, so that what was seen may be old."""
        self.version = np.zeros(shape, np.int32)
        """Of the reward model that paid for the step."""
        self.good = np.zeros(shape, bool)
        """Steps that are worth imitating: of a demonstration, or of an episode whose last step was paid."""
        self.picture = np.full(shape, -1, np.int32)
        """Number of the state's frame in the album; -1: none."""
        self.count = np.zeros(num_envs, np.int64)
        """Slots that were ever finished, per environment; the present state lies in slot `count % length`."""
        self.steps = 0
        """Steps that can be drawn."""

    @property
    def length(self) -> int:
        """Slots of a row."""
        return self.kind.shape[1]

    @property
    def num_envs(self) -> int:
        """Rows."""
        return self.kind.shape[0]

    @property
    def nbytes(self) -> int:
        """Of all arrays, pictures included."""
        return sum(array.nbytes for array in self.columns().values()) + (self.album.nbytes if self.album else 0)

    def columns(self) -> dict[str, np.ndarray]:
        """The arrays by name, [N, length, …] each."""
        return {name: getattr(self, name) for name in COLUMNS}

    # --- filling ---

    def add(self, rollout: Rollout, first: int = 0) -> None:
        """Remember a rollout; where it does not go on where the last one ended, nobody knows what came after that.

        first: the row of its first environment.
        """
        everyone = first + np.arange(rollout.num_envs)
        empty = (self.kind[everyone, self._at(everyone)] == EMPTY).any()
        if not rollout.goes_on and not empty:
            self.count[everyone] += 1
        if empty or not rollout.goes_on:
            self._state(everyone, {name: array[0] for name, array in rollout.observations.items()})
        ends = {(final.step, final.env): final.observation for final in rollout.finals}
        own, judged = rollout.rewards if rollout.env_rewards is None else rollout.env_rewards, rollout.judged
        ended = rollout.terminated | rollout.truncated
        for t in range(rollout.steps):
            self._step(
                everyone, rollout.actions[t], rollout.rewards[t], own[t], rollout.terminated[t],
                rollout.success[t], rollout.held[t], rollout.versions[t],
            )  # fmt: skip
            done = np.flatnonzero(ended[t])
            if len(done):
                last = [ends[t, int(i)] for i in done]
                ends_of = {name: np.stack([each[name] for each in last]) for name in rollout.observations}
                self._state(everyone[done], ends_of, END)
            place = self._at(everyone)
            for env in done.tolist():
                self._praise(first + env, place[env])
            self.count[everyone[done]] += 1
            more = t + 1 < rollout.steps
            self._state(everyone, {n: a[t + 1] if more else rollout.last[n] for n, a in rollout.observations.items()})
            if judged is not None and not self.seen:
                envs = np.flatnonzero(judged.where[t])
                if len(envs):
                    self._attach(everyone[envs], place[envs], judged.frames[judged.numbers[t, envs]])

    def add_episode(
        self,
        observations: Observation,
        actions: np.ndarray,
        rewards: np.ndarray,
        terminated: np.ndarray,
        *,
        env_rewards: np.ndarray | None = None,
        frames: Mapping[int, np.ndarray] | None = None,
        success: np.ndarray | None = None,
        held: np.ndarray | None = None,
        versions: np.ndarray | None = None,
        whole: bool = True,
    ) -> None:
        """Remember a demonstration in the first row: T+1 observations, T actions, rewards and ends.

        frames: uint8[V,H,W,3] to be judged, by the number of the state. success: bool[T], the truth about the states
        that steps led to. held: bool[T], where an arm held in them. whole: whether the episode ended; else it goes on,
        but nobody knows how.
        """
        row, steps = np.zeros(1, np.int64), len(actions)
        own = rewards if env_rewards is None else env_rewards
        true = np.zeros(steps, bool) if success is None else success
        still = np.zeros(steps, bool) if held is None else held
        paid_by = np.zeros(steps, np.int32) if versions is None else versions
        for t in range(steps + 1):
            last = END if whole and t == steps else CUT
            self._state(row, {name: value[t : t + 1] for name, value in observations.items()}, last)
            if frames is not None and t in frames and not self.seen:
                self._attach(row, self._at(row), frames[t][None])
            if t < steps:
                self._step(row, actions[t], rewards[t], own[t], terminated[t], true[t], still[t], paid_by[t])
        self.count[0] += 1

    def add_stretches(self, rollout: Rollout) -> None:
        """Remember what a person did in a rollout as demonstrated, stretch by stretch."""
        ended = rollout.terminated | rollout.truncated
        for env in range(rollout.num_envs):
            cuts = np.flatnonzero(np.diff(rollout.intervened[:, env].astype(int), prepend=0, append=0))
            for start, stop in zip(cuts[::2], cuts[1::2], strict=True):
                for first, last in _episodes(start, stop, ended[:, env]):
                    self._add_stretch(rollout, env, first, last, whole=bool(ended[last - 1, env]))

    def _add_stretch(self, rollout: Rollout, env: int, first: int, last: int, *, whole: bool) -> None:
        """The steps of an environment from `first` on, without `last`; whole: an episode ends there."""
        steps, judged = slice(first, last), rollout.judged
        own = rollout.rewards if rollout.env_rewards is None else rollout.env_rewards
        states = {}
        for name, array in rollout.observations.items():
            after = rollout.last[name][env] if last == rollout.steps else array[last, env]
            if whole:
                (after,) = [
                    each.observation[name] for each in rollout.finals if (each.step, each.env) == (last - 1, env)
                ]
            states[name] = np.concatenate([array[steps, env], after[None]])
        frames = {}
        if judged is not None:
            places = first + np.flatnonzero(judged.where[steps, env])
            frames = {int(t - first + 1): judged.frames[judged.numbers[t, env]] for t in places}
        self.add_episode(
            states, rollout.actions[steps, env], rollout.rewards[steps, env], rollout.terminated[steps, env],
            env_rewards=own[steps, env], success=rollout.success[steps, env], held=rollout.held[steps, env],
            versions=rollout.versions[steps, env], frames=frames, whole=whole,
        )  # fmt: skip

    def _at(self, envs: np.ndarray) -> np.ndarray:
        return self.count[envs] % self.length

    def _state(self, envs: np.ndarray, observation: Mapping[str, np.ndarray], kind: int = CUT) -> None:
        """Write a state into the present slots, whatever was there."""
        at = self._at(envs)
        self.clear(envs, at)
        if self.states.shape[2]:
            self.states[envs, at] = observation["states"]
        self.kind[envs, at] = kind
        if self.seen:
            self._attach(envs, at, join_views(observation))

    def _step(
        self,
        envs: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray | float,
        env_rewards: np.ndarray | float,
        terminated: np.ndarray | bool,
        truth: np.ndarray | bool,
        held: np.ndarray | bool,
        versions: np.ndarray | int,
    ) -> None:
        """An action from the present slots on, which are finished by it."""
        at = self._at(envs)
        self.actions[envs, at], self.rewards[envs, at] = actions, rewards
        self.env_rewards[envs, at], self.terminated[envs, at] = env_rewards, terminated
        self.truth[envs, at], self.held[envs, at], self.version[envs, at] = truth, held, versions
        self.kind[envs, at] = STEP
        self.good[envs, at] = self.shown
        self.steps += len(envs)
        self.count[envs] += 1

    def _praise(self, row: int, end: int) -> None:
        """Mark the steps of the episode that ends in this slot, if the last one was paid."""
        slot, paid = end - 1, self.rewards[row, end - 1] > 0
        while self.kind[row, slot] == STEP:
            self.good[row, slot] = paid
            slot = (slot - 1) % self.length

    def praise(self) -> None:
        """The same for all that is remembered: after it was paid anew, or read from files."""
        self.good[:] = self.shown & (self.kind == STEP)
        if not self.shown:
            for row, end in zip(*np.nonzero(self.kind == END), strict=True):
                self._praise(row, end)

    def clear(self, envs: np.ndarray, at: np.ndarray) -> None:
        """Forget what is in these slots."""
        self.steps -= int((self.kind[envs, at] == STEP).sum())
        self.kind[envs, at] = EMPTY
        old = self.picture[envs, at]
        if self.album is not None and (old >= 0).any():
            self.album.free(old[old >= 0])
        self.picture[envs, at] = -1

    def _attach(self, envs: np.ndarray, at: np.ndarray, frames: np.ndarray) -> None:
        assert self.album is not None
        self.picture[envs, at] = self.album.add(frames)

    # --- drawing ---

    def draw(self, count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Rows int[count] and slots int[count] of steps, each as likely as any other."""
        if not self.steps:
            raise RefereeError("nothing can be drawn from an empty replay")
        filled = np.minimum(self.count + 1, self.length)
        total, found, missing = int(filled.sum()), np.zeros(0, np.int64), count
        bounds = np.cumsum(filled)
        while missing > 0:
            number = random.integers(total, size=missing + 16 + missing // 8)
            rows = np.searchsorted(bounds, number, side="right")
            flat = rows * self.length + number - (bounds - filled)[rows]
            flat = flat[self.kind.reshape(-1)[flat] == STEP][:missing]
            found = np.concatenate([found, flat])
            missing = count - len(found)
        return np.divmod(found, self.length)

    def transitions(
        self, rows: np.ndarray, slots: np.ndarray, *, gamma: float, n_step: int = 1, bootstrap_type: str = "standard"
    ) -> Transitions:
        """The steps at these places, each followed for `n_step` steps or to what is known of its episode."""
        now, goes_on = slots, np.ones(len(slots), bool)
        rewards, discounts = np.zeros(len(slots), np.float32), np.ones(len(slots), np.float32)
        ended, terminated = np.zeros(len(slots), bool), np.zeros(len(slots), bool)
        for _ in range(n_step):
            rewards += np.where(goes_on, discounts * self.rewards[rows, now], np.float32(0))
            discounts = np.where(goes_on, np.float32(gamma) * discounts, discounts)
            terminated |= goes_on & self.terminated[rows, now]
            following = np.where(goes_on, (now + 1) % self.length, now)
            kinds = self.kind[rows, following]
            ended |= goes_on & (kinds == END)
            now, goes_on = following, goes_on & (kinds == STEP)
        if bootstrap_type != "always":
            discounts = np.where(ended if bootstrap_type == "never" else terminated, np.float32(0), discounts)
        return Transitions(
            self.observations(rows, slots), torch.from_numpy(self.actions[rows, slots]), torch.from_numpy(rewards),
            self.observations(rows, now), torch.from_numpy(discounts), torch.from_numpy(self.good[rows, slots]),
        )  # fmt: skip

    def observations(self, rows: np.ndarray, slots: np.ndarray) -> Tensors:
        """What was observed there."""
        found: Tensors = {}
        if self.states.shape[2]:
            found["states"] = torch.from_numpy(self.states[rows, slots])
        if self.seen:
            assert self.album is not None
            pictures = split_views(self.album.take(self.picture[rows, slots]))
            found |= {name: torch.from_numpy(images) for name, images in pictures.items()}
        return found

    def steps_shown(self) -> tuple[Tensors, torch.Tensor]:
        """All that is remembered, in order: what was observed, and what was done."""
        rows, slots = np.nonzero(self.kind == STEP)
        return self.observations(rows, slots), torch.from_numpy(self.actions[rows, slots])

    # --- another reward model ---

    def rescore(self, judge: Judge, mix: Mix, *, every: bool, version: int) -> int:
        """Let a reward model pay anew for all that is remembered, so that no two models' words are mixed.

        every: whether each state is judged, or an episode's last one. Returns how many frames were judged.
        """
        assert self.album is not None
        total = 0
        for row in range(self.num_envs):
            order = (self.count[row] + 1 + np.arange(self.length)) % self.length  # the oldest first
            kinds = self.kind[row, order]
            led = (kinds[:-1] == STEP) & (kinds[1:] != EMPTY)
            steps, after = order[:-1][led], order[1:][led]
            ends = self.kind[row, after] == END
            judged = (self.picture[row, after] >= 0) & (ends | every)
            began = np.ones(len(steps), bool)
            if every:
                began[1:] = ends[:-1] | (np.diff(steps) % self.length != 1)
            model = np.zeros(len(steps), np.float32)
            if judged.any():
                model[judged] = judge(
                    self.album.take(self.picture[row, after[judged]]), began[judged], self.held[row, steps[judged]]
                )
            self.rewards[row, steps] = mix(self.env_rewards[row, steps], model, self.truth[row, steps] & judged)
            self.version[row, steps] = version
            total += int(judged.sum())
        self.praise()
        return total


def _episodes(start: int, stop: int, ended: np.ndarray) -> list[tuple[int, int]]:
    """The stretch from `start` to `stop`, cut where episodes end within it."""
    bounds = [start, *(start + 1 + np.flatnonzero(ended[start : stop - 1])), stop]
    return [(int(first), int(last)) for first, last in pairwise(bounds)]
