"""History buffers: which short histories of each environment are due to be judged, with every frame kept once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from referee.errors import RefereeError
from referee.models.window import Window

KEYS = ("main_images", "extra_view_images")
PROGRESS = "progress"
"""Kept beside the frames where it is known, for the log: no window shows it."""


@dataclass(frozen=True, kw_only=True)
class HistoryBuffer:
    """When a history is judged, and how much of it; the names are those of the keys under `history_buffers`."""

    history_size: int = 5
    """Frames of a window, at most."""
    min_history_size: int = 5
    """Frames that an episode must have shown before the first window."""
    input_interval: int = 1
    """Steps from one window to the next; the first one comes as soon as the history is long enough."""
    history_keys: tuple[str, ...] = KEYS
    input_on_done: bool = False
    """Whether an episode's last state is due, too, whatever the interval says."""

    def __post_init__(self) -> None:
        for name in ("history_size", "min_history_size", "input_interval"):
            if getattr(self, name) < 1:
                raise RefereeError(f"{name} is {getattr(self, name)}, but 1 is the least")
        if self.min_history_size > self.history_size:
            raise RefereeError(
                f"min_history_size={self.min_history_size} is more than history_size="
                f"{self.history_size}, so no window would ever be long enough: lower it"
            )
        if not self.history_keys or set(self.history_keys) - set(KEYS):
            raise RefereeError(f"history_keys are {list(self.history_keys)}: use {' and '.join(KEYS)}")

    @property
    def first(self) -> int:
        """The first state of an episode that is due; state 0 never is, since no step led to it."""
        return max(self.min_history_size - 1, 1)

    def due(self, ages: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """bool: where a window ends. ages: number of each state in its episode, from 0; ended: where it is the last."""
        on_time = (ages - self.first) % self.input_interval == 0
        return (ages >= self.first) & (on_time | (ended & self.input_on_done))


@dataclass(frozen=True, eq=False)
class Windows:
    """m windows of a rollout, over frames that are kept once, in the order of their steps."""

    frames: Mapping[str, np.ndarray]
    """By observation key, [F,…]: those of all windows, one behind the other."""
    keys: tuple[tuple[str, ...], ...]
    """The observation keys of each buffer."""
    steps: np.ndarray
    """int[m]: the step that led to the last frame of a window;"""
    envs: np.ndarray
    """and its environment."""
    starts: np.ndarray
    """int[m]: where its first frame lies;"""
    lengths: np.ndarray
    """and how many it has."""
    buffers: np.ndarray
    """int[m]: whose window it is."""

    def __len__(self) -> int:
        return len(self.steps)

    def window(self, number: int, task: str) -> Window:
        """One of them, as views of the frames."""
        start = int(self.starts[number])
        part = slice(start, start + int(self.lengths[number]))
        keys = self.keys[int(self.buffers[number])]
        return Window({name: self.frames[name][part] for name in keys if name in self.frames}, task)

    def packed(self) -> Windows:
        """The same with copies of those frames alone that some window shows, to be sent away."""
        total = len(next(iter(self.frames.values()))) if self.frames else 0
        edges = np.zeros(total + 1, np.int64)
        np.add.at(edges, self.starts, 1)
        np.add.at(edges, self.starts + self.lengths, -1)
        shown = np.cumsum(edges[:-1]) > 0
        places = np.cumsum(shown) - 1
        frames = {name: images[shown] for name, images in self.frames.items()}
        return replace(self, frames=frames, starts=places[self.starts] if len(self) else self.starts)


class History:
    """The frames that environments showed, per environment in their order, and the windows that are due.

    An environment has a line of slots. A state takes one slot; where an episode ends, the first state of the next one
    takes the slot behind it, so no window reaches from one episode into another. At the start of a rollout, the last
    frames of an episode that goes on are moved to the front.
    """

    def __init__(self, buffers: Mapping[str, HistoryBuffer], num_envs: int, steps: int) -> None:
        """steps: of a rollout."""
        self._buffers = tuple(buffers.values())
        self._keep = max(buffer.history_size for buffer in self._buffers) - 1
        self._frames: dict[str, np.ndarray] = {}
        self._rows = np.arange(num_envs)
        self._count = np.zeros(num_envs, np.int64)
        """Slots that are filled."""
        self._age = np.full(num_envs, -1)
        """Number of the latest state in its episode."""
        self._slots = np.zeros((steps, num_envs), np.int64)
        """Of the state that a step led to;"""
        self._ages = np.zeros((steps, num_envs), np.int64)
        """its number in its episode;"""
        self._ended = np.zeros((steps, num_envs), bool)
        """and whether it is the last."""
        self._step = 0

    @property
    def started(self) -> bool:
        """Whether the first states were seen."""
        return bool((self._age >= 0).all())

    @property
    def bytes_per_env(self) -> int:
        """Of the frames that are kept for one environment."""
        return sum(images[0].nbytes for images in self._frames.values())

    def start(self, frames: Mapping[str, np.ndarray]) -> None:
        """The first states of all episodes, {key: [N,…]}."""
        self._count[:], self._age[:] = 0, 0
        self._put(self._rows, frames)

    def begin(self) -> None:
        """A rollout begins: of episodes under way, the last frames are kept."""
        kept = self._kept()
        for _name, images in self._frames.items():
            images[:, : self._keep] = images[self._rows[:, None], self._places(kept)]
        self._count[:] = kept
        self._step = 0

    def add(self, states: Mapping[str, np.ndarray], ended: np.ndarray, firsts: Mapping[str, np.ndarray]) -> None:
        """The states that a step led to, and which of them are the last of their episodes.

        states: {key: [N,…]}; ended: bool[N]; firsts: {key: [m,…]}, the first states of the episodes that follow.
        """
        self._age += 1
        self._slots[self._step], self._ages[self._step], self._ended[self._step] = self._count, self._age, ended
        self._put(self._rows, states)
        ids = np.flatnonzero(ended)
        if len(ids):
            self._put(ids, firsts)
            self._age[ids] = 0
        self._step += 1

    def windows(self) -> Windows:
        """Those that are due in the steps since `begin`; their frames are views of what is kept."""
        slots, ages, ended = (array[: self._step] for array in (self._slots, self._ages, self._ended))
        length = next(iter(self._frames.values())).shape[1] if self._frames else 0
        found = []
        for number, buffer in enumerate(self._buffers):
            steps, envs = np.nonzero(buffer.due(ages, ended))
            lengths = np.minimum(buffer.history_size, ages[steps, envs] + 1)
            starts = envs * length + slots[steps, envs] + 1 - lengths
            found.append(np.stack([steps, envs, starts, lengths, np.full(len(steps), number)]))
        joined = np.concatenate(found, axis=1)
        order = np.lexsort((joined[1], joined[0]))
        flat = {name: images.reshape(-1, *images.shape[2:]) for name, images in self._frames.items()}
        return Windows(flat, tuple(buffer.history_keys for buffer in self._buffers), *joined[:, order])

    def _put(self, rows: np.ndarray, frames: Mapping[str, np.ndarray]) -> None:
        names = {PROGRESS, *(name for buffer in self._buffers for name in buffer.history_keys)}
        for name in sorted(names & set(frames)):
            images = self._room(name, frames[name])
            images[rows, self._count[rows]] = frames[name]
        self._count[rows] += 1

    def _room(self, name: str, images: np.ndarray) -> np.ndarray:
        """The slots of a key, with at least one more free in each line."""
        wanted = int(self._count.max()) + 1
        there = self._frames.get(name)
        if there is None or there.shape[1] < wanted:
            # For the steps of a rollout and a few ends of episodes; more of them make it grow by a quarter.
            length = self._keep + len(self._slots) + 2 if there is None else wanted + wanted // 4
            larger = np.zeros((len(self._rows), max(length, wanted), *images.shape[1:]), images.dtype)
            if there is not None:
                larger[:, : there.shape[1]] = there
            self._frames[name] = there = larger
        return there

    def _kept(self) -> np.ndarray:
        """int[N]: frames of the episode under way that a later window may show."""
        return np.minimum(self._age + 1, self._keep)

    def _places(self, kept: np.ndarray) -> np.ndarray:
        """int[N,keep]: the slots of these frames, the oldest first; beyond them, any."""
        return np.maximum(
            np.minimum((self._count - kept)[:, None] + np.arange(self._keep), self._count[:, None] - 1), 0
        )

    def save_state(self) -> dict[str, np.ndarray]:
        """What later windows depend on, between two rollouts; nothing before the first."""
        if not self.started:
            return {}
        places = self._places(self._kept())
        frames = {f"frames.{name}": images[self._rows[:, None], places] for name, images in self._frames.items()}
        return {"age": self._age.copy(), **frames}

    def restore_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from a saved state."""
        if "age" not in state:
            return
        self._age[:] = state["age"]
        self._count[:] = 0
        saved = {name.removeprefix("frames."): frames for name, frames in state.items() if name.startswith("frames.")}
        for name, frames in saved.items():
            if frames.shape[:2] != (len(self._rows), self._keep):
                raise RefereeError(
                    f"the run that is resumed kept {frames.shape[1]} frames of {frames.shape[0]} environments, here it "
                    f"is {self._keep} of {len(self._rows)}: set reward.model.history_buffers as they were"
                )
            self._room(
                name, frames[:, 0] if self._keep else np.zeros((len(self._rows), *frames.shape[2:]), frames.dtype)
            )
            self._frames[name][:, : self._keep] = frames
        self._count[:] = self._kept()
        self._step = 0
