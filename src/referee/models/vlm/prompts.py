"""What a vision-language model is asked about a window. A way of your own to ask takes a few lines:

@register_input_builder("mine")
def ask(window: Window, *, question: str = "Is the cube lifted? positive, negative or unclear?") -> Prompt:
    return Prompt((f"{window.task} {question}", window.frames["main_images"][-1]))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from referee.errors import RefereeError
from referee.models.vlm.named import Named
from referee.models.window import Window

MAIN, EXTRA = "main_images", "extra_view_images"
QWENTREND = "qwentrend_input_builder"


@dataclass(frozen=True, eq=False)
class Prompt:
    """Text and pictures in the order in which they are shown; never the answer."""

    parts: tuple[str | np.ndarray, ...]
    """Texts, pictures uint8[H,W,3], and clips uint8[k,H,W,3] for models that take films."""
    system: str = ""
    """What is said before everything else; most models need nothing."""

    @property
    def stills(self) -> list[str | np.ndarray]:
        """The parts with clips as their frames, for models that take pictures only."""
        films = [part if isinstance(part, np.ndarray) and part.ndim == 4 else [part] for part in self.parts]
        return [part for film in films for part in film]

    @property
    def images(self) -> list[np.ndarray]:
        """The pictures alone, frames of clips among them."""
        return [part for part in self.stills if isinstance(part, np.ndarray)]

    @property
    def text(self) -> str:
        """The words alone."""
        return "".join(part for part in self.parts if isinstance(part, str))


InputBuilder = Callable[[Window], Prompt]
B = TypeVar("B", bound=Callable[..., Prompt])
_builders: Named[Callable[..., Prompt]] = Named("input builder", "input_builder")


def register_input_builder(name: str) -> Callable[[B], B]:
    """A decorator that makes a builder known: it takes a window, and keyword-only parameters."""

    def add(builder: B) -> B:
        _builders.add(name, builder)
        return builder

    return add


def make_input_builder(name: str = QWENTREND, params: Mapping[str, Any] | None = None) -> InputBuilder:
    """The builder called `name`, with its parameters set."""
    params = params or {}
    return partial(_builders.get(name, params), **params)


@register_input_builder(QWENTREND)
def qwentrend_input_builder(
    window: Window,
    *,
    default_task_description: str = "",
    max_frames: int = 0,
    by_view: bool = True,
    as_video: bool = False,
    crop: str = "",
    question: str = "",
) -> Prompt:
    """The frames of every view from the oldest to the newest, and the question whether the task comes closer.

    default_task_description: for windows that do not say what is to be done.
    max_frames: show only so many, evenly spaced with both ends kept; 0 = all.
    by_view: all frames of one view, then those of the next; else all views of one frame, then the next frame.
    as_video: each view is one clip, in which the model sees two frames at a time; else each frame is a picture.
    crop: the part of every view that is shown, as shares "left,top,right,bottom" of its width and height; "" = all.
    question: asked in place of the usual one.
    """
    task = window.task or default_task_description
    views = [_cropped(view, crop) for view in _views(window)] if crop else _views(window)
    count = len(views[0])
    if max_frames and count > max_frames:
        kept = np.unique(np.linspace(0, count - 1, max_frames).round().astype(int))
        views, count = [view[kept] for view in views], len(kept)
    named = [("main camera", views[0]), *((f"camera {n}", view) for n, view in enumerate(views[1:], 2))]
    parts: list[str | np.ndarray] = [f"Task: {task}\n" if task else ""]
    if as_video:
        for name, view in named:
            parts += [f"{name}: ", view, "\n"]
    elif by_view:
        for name, view in named:
            parts += [f"{name}, {count} frames, oldest first: ", *view, "\n"]
    else:
        for number in range(count):
            parts.append(f"frame {number + 1} of {count}: ")
            parts += [view[number] for _, view in named]
            parts.append("\n")
    asked = "over these frames" if count > 1 else "in this frame"
    usual = f"Does the robot come closer to completing the task {asked}? Answer positive, negative or unclear."
    parts.append(question or usual)
    return Prompt(_joined(parts))


def _views(window: Window) -> list[np.ndarray]:
    """The views uint8[k,H,W,3] of a window, the main one first."""
    if MAIN not in window.frames:
        raise RefereeError(
            f"a window has no {MAIN}, only {', '.join(window.frames) or 'nothing'}: add it to history_keys"
        )
    main = np.asarray(window.frames[MAIN])
    views = [main]
    if EXTRA in window.frames:
        extra = np.asarray(window.frames[EXTRA])
        views += [extra] if extra.ndim == 4 else [extra[:, number] for number in range(extra.shape[1])]
    for view in views:
        if view.dtype != np.uint8 or view.ndim != 4 or view.shape[3] != 3 or not len(view):
            raise RefereeError(f"frames of a window are {view.dtype}{list(view.shape)}, not uint8[k,H,W,3]")
    return views


def _cropped(view: np.ndarray, crop: str) -> np.ndarray:
    """Part of a view uint8[k,H,W,3]."""
    try:
        left, top, right, bottom = map(float, crop.split(","))
    except ValueError:
        left = top = right = bottom = 0.0
    if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):
        raise RefereeError(f"crop is {crop!r}: it must be left,top,right,bottom between 0 and 1, as 0.1,0.2,0.9,1")
    height, width = view.shape[1:3]
    rows, columns = slice(round(top * height), round(bottom * height)), slice(round(left * width), round(right * width))
    if not view[:, rows, columns].size:
        raise RefereeError(f"crop is {crop!r}, which leaves nothing of a view of {width} x {height} pixels")
    return view[:, rows, columns]


def _joined(parts: list[str | np.ndarray]) -> tuple[str | np.ndarray, ...]:
    """The same with neighbouring texts put together, and without empty ones."""
    joined: list[str | np.ndarray] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif not isinstance(part, str) or part:
            joined.append(part)
    return tuple(joined)
