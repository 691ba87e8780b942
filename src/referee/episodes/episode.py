"""An episode: T steps between T+1 states. What is about a state has T+1 rows, what is about a step has T."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from referee.errors import EpisodeError as EpisodeError

IMAGES = ("main_images", "extra_view_images")
PROGRESS = "progress"
"""The signal that holds how far a state is, in 0..1, where a recorder knew it."""
GRASP = "grasp"
WHOLE_SUCCESS = "success"
"""In `Meta.extra`: what the source said of an episode as a whole, where no state of it is marked as a success."""
TASK_SUCCESS = "task_success"
"""What a twin knows of its task, where success is said by somebody else: a pose, a person."""
INTERVENED = "intervened"
"""Whether a person's action led to a state; an episode's actions are those that were really taken."""
HELD = "held"
"""Whether the arm had to hold on the way to a state, or something about it is not known."""
ACTION_LOW, ACTION_HIGH = "action_low", "action_high"
"""In `Meta.extra`: the bounds of the actions, one number per entry, in the units of the environment that took them."""


@dataclass(frozen=True)
class Meta:
    """Where an episode comes from, as plain values."""

    id: str = ""
    """Given by the store; unique across processes and machines."""
    task: str = ""
    description: str = ""
    """The task in words."""
    source: str = ""
    """Who acted: `expert`, `policy`, `teleop`, … or the file that it was imported from."""
    cameras: tuple[str, ...] = ()
    """Names of the views: first `main_images`, then each of `extra_view_images`."""
    rank: int = 0
    env: int = 0
    episode: int = 0
    """The n-th episode of that environment."""
    seed: int | None = None
    fps: float | None = None
    created: str = ""
    """UTC, ISO 8601."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Anything else that is plain JSON."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**vars(self), "cameras": list(self.cameras)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Meta:
        """The inverse of `to_json`; unknown names are kept in `extra`, wrong types are an error."""
        known = {each.name for each in fields(cls)}
        mine = {name: value for name, value in values.items() if name in known}
        strange = {name: value for name, value in values.items() if name not in known}
        kinds: dict[str, Any] = {
            "rank": int, "env": int, "episode": int, "seed": (int, type(None)), "fps": (int, float, type(None)),
            "cameras": (list, tuple), "extra": dict,
        }  # fmt: skip
        for name, value in mine.items():
            if not isinstance(value, kinds.get(name, str)):
                raise EpisodeError(f"{name} of an episode is {value!r}, which it cannot be")
        mine["cameras"] = tuple(str(name) for name in mine.get("cameras", ()))
        mine["extra"] = {**mine.get("extra", {}), **strange}
        return cls(**mine)


def action_bounds(space: Any) -> dict[str, Any]:
    """The bounds of a Box of actions for `Meta.extra`; nothing of other spaces, and of a Box without bounds."""
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if low is None or high is None or not np.isfinite([low, high]).all():
        return {}
    return {ACTION_LOW: low.reshape(-1).tolist(), ACTION_HIGH: high.reshape(-1).tolist()}


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode as arrays. `validate` says whether they fit each other; the constructor does not copy."""

    observations: dict[str, np.ndarray]
    """T+1 rows each: `states` f32[T+1,d], `main_images` u8[T+1,H,W,3], `extra_view_images` u8[T+1,V,H,W,3]."""
    actions: np.ndarray
    """f32[T,a]"""
    rewards: np.ndarray
    """f32[T]"""
    terminated: np.ndarray
    """bool[T]"""
    truncated: np.ndarray
    """bool[T]"""
    success: np.ndarray | None = None
    """bool[T+1]: whether each state is a success; None where nobody has said so."""
    signals: dict[str, np.ndarray] = field(default_factory=dict)
    """Further numbers about states, T+1 rows each, as `grasp` or `progress`."""
    meta: Meta = field(default_factory=Meta)

    def __len__(self) -> int:
        """The number of steps, T."""
        return len(self.actions)

    @property
    def states_count(self) -> int:
        """T+1"""
        return len(self.actions) + 1

    @property
    def success_once(self) -> bool | None:
        """Whether any state is a success, or its source said so of the episode as a whole; None where nobody did."""
        if self.meta.extra.get(WHOLE_SUCCESS) is True:
            return True
        return None if self.success is None else bool(self.success.any())

    @property
    def success_at_end(self) -> bool | None:
        """Whether the last state is a success."""
        return None if self.success is None else bool(self.success[-1])

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays().values())

    def views(self) -> dict[str, np.ndarray]:
        """{camera: uint8[T+1,H,W,3]}; empty where it holds no images."""
        if "main_images" not in self.observations:
            return {}
        extra = self.observations.get("extra_view_images")
        views = [self.observations["main_images"], *([] if extra is None else extra.swapaxes(0, 1))]
        named = len(self.meta.cameras) == len(views)
        return dict(zip(self.meta.cameras if named else [f"view {i}" for i in range(len(views))], views, strict=True))

    def view(self, camera: str) -> np.ndarray:
        """The images uint8[T+1,H,W,3] of one camera, by its name (or `main_images`)."""
        if "main_images" not in self.observations:
            raise EpisodeError(f"episode {self.meta.id} holds no images")
        if camera == "main_images" or camera == next(iter(self.meta.cameras), None):
            return self.observations["main_images"]
        if camera in self.meta.cameras:
            return self.observations["extra_view_images"][:, self.meta.cameras.index(camera) - 1]
        raise EpisodeError(f"episode {self.meta.id} has no camera {camera!r}: it has {', '.join(self.meta.cameras)}")

    def __repr__(self) -> str:
        cameras = ", ".join(self.views()) or "no images"
        return f"Episode({self.meta.id!r}, {len(self)} steps, {cameras}, {self._outcome()})"

    def _repr_html_(self) -> str:
        from referee import notebook  # brings Pillow

        facts = {
            "task": self.meta.description or self.meta.task,
            "source": self.meta.source,
            "steps": len(self),
            "success": self._outcome(),
            "cameras": ", ".join(self.views()),
        }
        strip = [notebook.picture(notebook.film_strip(list(self.views().values()), self.success))] * bool(self.views())
        return notebook.panel(f"Episode {self.meta.id}", facts, *strip)

    def _outcome(self) -> str:
        if self.success is None:
            return "unlabelled"
        return f"success from state {int(self.success.argmax())}" if self.success.any() else "no success"

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by their names in a native file."""
        named = {f"observations/{name}": value for name, value in self.observations.items()}
        named |= {f"signals/{name}": value for name, value in self.signals.items()}
        named |= {name: getattr(self, name) for name in ("actions", "rewards", "terminated", "truncated")}
        return named if self.success is None else {**named, "success": self.success}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], meta: Meta) -> Episode:
        """The inverse of `arrays`."""
        missing = [name for name in ("actions", "rewards", "terminated", "truncated") if name not in arrays]
        if missing:
            raise EpisodeError(f"holds no {', '.join(missing)}")
        plain = {name: arrays[name] for name in ("actions", "rewards", "terminated", "truncated")}
        return cls(
            _named(arrays, "observations/"),
            **plain,
            success=arrays.get("success"),
            signals=_named(arrays, "signals/"),
            meta=meta,
        )

    def validate(self) -> Episode:
        """Itself, or an `EpisodeError` that says which array does not fit."""
        steps = len(self.actions)
        if steps < 1:
            raise EpisodeError("an episode needs at least one step")
        if self.actions.ndim != 2 or self.actions.dtype != np.float32:
            raise EpisodeError(f"actions must be f32[T,a], not {self.actions.dtype}{list(self.actions.shape)}")
        wanted: dict[str, tuple[int, Any]] = {
            "rewards": (steps, np.float32), "terminated": (steps, np.bool_), "truncated": (steps, np.bool_),
            "success": (steps + 1, np.bool_),
        }  # fmt: skip
        for name, (rows, dtype) in wanted.items():
            array = getattr(self, name)
            if array is not None and (array.shape != (rows,) or array.dtype != dtype):
                raise EpisodeError(
                    f"{name} must be {np.dtype(dtype)}[{rows}] for {steps} actions, "
                    f"not {array.dtype}{list(array.shape)}"
                )
        for kind, group in (("observation", self.observations), ("signal", self.signals)):
            for name, array in group.items():
                if not name or "/" in name:
                    raise EpisodeError(f"{kind} {name!r} has no usable name")
                if array.ndim < 1 or len(array) != steps + 1:
                    raise EpisodeError(f"{kind} {name} has {list(array.shape)}, but {steps + 1} rows are needed")
                if array.dtype.kind not in "biuf":
                    raise EpisodeError(f"{kind} {name} holds {array.dtype}, but numbers are needed")
        self._validate_images()
        try:
            if self.meta.extra:
                json.dumps(self.meta.extra, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise EpisodeError(f"meta.extra holds more than plain values ({error})") from error
        return self

    def _validate_images(self) -> None:
        for name, axes in (("main_images", 4), ("extra_view_images", 5)):
            array = self.observations.get(name)
            if array is not None and (array.dtype != np.uint8 or array.ndim != axes or array.shape[-1] != 3):
                shape = "[T+1,H,W,3]" if axes == 4 else "[T+1,V,H,W,3]"
                raise EpisodeError(f"{name} must be uint8{shape}, not {array.dtype}{list(array.shape)}")
        if self.meta.cameras and "main_images" in self.observations:
            extra = self.observations.get("extra_view_images")
            views = 1 + (extra.shape[1] if extra is not None else 0)
            if len(self.meta.cameras) != views:
                raise EpisodeError(f"{len(self.meta.cameras)} cameras are named, but there are {views} views")


def _named(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
