"""Observations as older files hold them, one per frame, made into arrays with a row per state.

An observation is a dict, or an array alone (a picture, or else `states`). In a dict, by name:

    main_images          a picture
    extra_view_images    pictures, stacked along their first axis; or one picture
    images               pictures by camera, in a dict of their own
    any other name       a picture if it is uint8 and has the shape of one, else numbers; `states` become float32

A picture is uint8, whole numbers in 0..255 or floats in 0..1; [H,W,3] or [3,H,W]; with or without a first axis of 1 (a
batch of one). All become uint8[H,W,3] here, once. Numbers lose a first axis of 1 too. Where there are no `main_images`,
the first camera is the main one. What can be neither (text, None) is named in `skipped`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from referee.episodes.episode import EpisodeError
from referee.episodes.formats.frames import check_size

_DESCRIPTIONS = ("task_descriptions", "task_description")
_TOLERANCE = 1e-3


@dataclass
class Observed:
    """The observations of an episode."""

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    cameras: tuple[str, ...] = ()
    description: str = ""
    skipped: list[str] = field(default_factory=list)


def stack(frames: Sequence[Any], *, exact: bool = False) -> Observed:
    """The arrays of all frames. With `exact` they are ours already, and are only stacked."""
    if not frames:
        raise EpisodeError("holds no observations")
    rows = [_named(frame) for frame in frames]
    first = rows[0]
    for index, row in enumerate(rows):
        if absent := first.keys() - row.keys():
            raise EpisodeError(f"the observation of frame {index} has no {min(absent)}")
    columns = {name: [row[name] for row in rows] for name in first}
    if exact:
        return Observed({name: stack_numbers(values, name) for name, values in columns.items()})
    observed, pictures = Observed(), {}
    for name, values in columns.items():
        value = values[0]
        if name.rpartition("/")[2] in _DESCRIPTIONS and isinstance(text := _only(value), str):
            observed.description = text[:1000]
        elif name == "extra_view_images":
            observed.arrays[name] = _views(values)
        elif name == "main_images" or name.startswith("images/") or _is_picture(value):
            pictures[name.removeprefix("images/")] = stack_pictures(values, name)
        elif _is_numbers(value):
            array = stack_numbers([_unbatched(numbers(each, name)) for each in values], name)
            observed.arrays[name.replace("/", ".")] = float32(array) if name == "states" else array
        else:
            observed.skipped.append(name[:100])
    place(observed, pictures)
    return observed


def place(observed: Observed, pictures: dict[str, np.ndarray]) -> None:
    """Put the pictures of cameras where they belong; one of another size than the main one keeps its own name."""
    if not pictures:
        return
    main = "main_images" if "main_images" in pictures else next(iter(pictures))
    observed.arrays["main_images"] = pictures.pop(main)
    free = "extra_view_images" not in observed.arrays
    same = [name for name, images in pictures.items() if free and images.shape == observed.arrays["main_images"].shape]
    if same:
        observed.arrays["extra_view_images"] = np.stack([pictures.pop(name) for name in same], axis=1)
    observed.arrays |= {name.replace("/", "."): images for name, images in pictures.items()}
    if free and (same or main != "main_images"):
        observed.cameras = ("main" if main == "main_images" else main, *same)


def stack_pictures(values: Sequence[Any], name: str, *, channels_first: bool | None = None) -> np.ndarray:
    """uint8[N,H,W,3] of pictures, all of one size; None finds out where their channels are."""
    first = picture(values[0], name, channels_first=channels_first)
    check_size(len(values), first.nbytes)
    images = np.empty((len(values), *first.shape), np.uint8)
    for index, value in enumerate(values):
        image = picture(value, name, channels_first=channels_first)
        if image.shape != first.shape:
            raise EpisodeError(f"the pictures of {name} change their size at frame {index}")
        images[index] = image
    return images


def picture(value: Any, name: str, *, channels_first: bool | None = None) -> np.ndarray:
    """One picture as uint8[H,W,3]."""
    if not isinstance(value, np.ndarray) or not value.size:
        raise EpisodeError(f"{name} holds no pictures")
    if value.ndim == 4 and len(value) == 1:
        value = value[0]
    if channels_first is None:
        channels_first = value.ndim == 3 and value.shape[-1] != 3
    if value.ndim != 3 or value.shape[0 if channels_first else -1] != 3:
        raise EpisodeError(f"{name} has pictures of shape {list(value.shape)}, but [H,W,3] or [3,H,W] is needed")
    colours = _colours(value, name)
    return np.moveaxis(colours, 0, -1) if channels_first else colours


def _colours(value: np.ndarray, name: str) -> np.ndarray:
    """The same as uint8."""
    if value.dtype == np.uint8:
        return value
    low, high = value.min(), value.max()
    if value.dtype.kind in "iu" and low >= 0 and high <= 255:
        return value.astype(np.uint8)
    if value.dtype.kind == "f" and low >= -_TOLERANCE and high <= 1 + _TOLERANCE:
        scaled = np.clip(value, 0, 1).astype(np.float32)
        scaled *= 255
        return np.rint(scaled, out=scaled).astype(np.uint8)
    raise EpisodeError(f"{name} has pictures of {value.dtype} from {low} to {high}, but uint8 or 0..1 is needed")


def stack_numbers(values: Sequence[Any], name: str) -> np.ndarray:
    """Numbers of all frames as one array, all of one shape."""
    arrays = [numbers(value, name) for value in values]
    check_size(len(arrays), arrays[0].nbytes if arrays else 0)
    if len({array.shape for array in arrays}) > 1:
        raise EpisodeError(f"{name} changes its shape from frame to frame")
    return np.stack(arrays)


def numbers(value: Any, name: str) -> np.ndarray:
    """A value as an array of numbers, or an error that names it."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError):
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise EpisodeError(f"{name} holds a {type(value).__name__} where numbers are needed")
    return array


def number(value: Any, name: str) -> float:
    """A single number, which may come as an array of one."""
    array = numbers(value, name)
    if array.size != 1:
        raise EpisodeError(f"{name} holds {array.size} numbers where one is needed")
    return float(array.reshape(-1)[0])


def float32(array: np.ndarray) -> np.ndarray:
    """The same numbers as float32; those beyond its range become infinite."""
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _named(frame: Any) -> Mapping[str, Any]:
    """A frame as a dict; one level of dicts inside it is joined to it by a stroke."""
    if isinstance(frame, np.ndarray):
        return {"main_images" if _is_picture(frame) else "states": frame}
    if not isinstance(frame, dict):
        raise EpisodeError(f"an observation is a {type(frame).__name__}, but a dict or an array is needed")
    flat: dict[str, Any] = {}
    for name, value in frame.items():
        if isinstance(value, dict):
            flat |= {f"{name}/{inner}": each for inner, each in value.items()}
        else:
            flat[str(name)] = value
    return flat


def _views(values: Sequence[Any]) -> np.ndarray:
    """uint8[N,V,H,W,3] of pictures that are stacked in each frame."""
    frames = []
    for value in values:
        if not isinstance(value, np.ndarray) or value.ndim not in (3, 4, 5):
            raise EpisodeError("extra_view_images holds no pictures")
        frame = value[0] if value.ndim == 5 and len(value) == 1 else value
        frames.append(frame[None] if frame.ndim == 3 else frame)
    if len({frame.shape for frame in frames}) > 1:
        raise EpisodeError("extra_view_images changes its shape from frame to frame")
    views = len(frames[0])
    if not views:
        return stack_numbers(frames, "extra_view_images")
    check_size(len(frames) * views, frames[0][0].size)
    return np.stack([stack_pictures([frame[v] for frame in frames], "extra_view_images") for v in range(views)], axis=1)


def _is_picture(value: Any) -> bool:
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        return False
    shape = value.shape[1:] if value.ndim == 4 and len(value) == 1 else value.shape
    return len(shape) == 3 and (shape[-1] == 3 or shape[0] == 3)


def _is_numbers(value: Any) -> bool:
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biuf"
    if isinstance(value, list | tuple):
        return bool(value) and _is_numbers(value[0])
    return isinstance(value, int | float)


def _unbatched(array: np.ndarray) -> np.ndarray:
    return array[0] if array.ndim > 1 and len(array) == 1 else array


def _only(value: Any) -> Any:
    """The one entry of a list of one, or the value itself."""
    return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value
