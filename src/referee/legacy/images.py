"""Images as the guides hand them over: [B,C,H,W] in 0..1 or [B,H,W,C], arrays or tensors, alone or by camera."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from referee.errors import RefereeError
from referee.models.spec import MAIN_NAMES

Images = np.ndarray | Tensor
IMAGE_KEYS = ("main_images", "extra_view_images")


def channels_last(images: Images, name: str = "images") -> Images:
    """[…,H,W,3], from that or from […,3,H,W]."""
    if not isinstance(images, np.ndarray | Tensor) or images.ndim < 3 or 3 not in (images.shape[-1], images.shape[-3]):
        shape = list(getattr(images, "shape", [])) or type(images).__name__
        raise RefereeError(f"{name} are {shape}, but an array or a tensor [B,3,H,W] or [B,H,W,3] is needed")
    if images.shape[-1] == 3:
        return images
    axes = (*range(images.ndim - 3), -2, -1, -3)
    return images.permute(*axes) if isinstance(images, Tensor) else images.transpose(axes)


def by_camera(observations: Images | Mapping[str, Any], cameras: Sequence[str]) -> dict[str, Images]:
    """{camera or main_images: […,H,W,3]} of what a model looks at, out of observations or of images of one camera."""
    if not isinstance(observations, Mapping):
        if len(cameras) > 1:
            raise RefereeError(f"the model looks at {', '.join(cameras)}: give a dict with the images of each")
        return {cameras[0]: channels_last(observations)}
    inner = next(
        (observations[name] for name in ("obs", "images") if isinstance(observations.get(name), Mapping)), None
    )
    if inner is not None:
        return by_camera(inner, cameras)
    found = {
        name: channels_last(observations[name], name)
        for name in (*cameras, *IMAGE_KEYS)
        if observations.get(name) is not None
    }
    main = next((name for name in MAIN_NAMES if observations.get(name) is not None), None)
    if main is not None and "main_images" not in found and not set(cameras) <= found.keys():
        found["main_images"] = channels_last(observations[main], main)
    if not found:
        there = ", ".join(map(str, observations)) or "nothing"
        raise RefereeError(f"the model looks at {', '.join(cameras)}, but the observations hold {there}")
    return found


def flat(images: Mapping[str, Images]) -> tuple[dict[str, np.ndarray], tuple[int, ...]]:
    """Arrays [n,…] whose axes of time and environment are one, and those axes."""
    lead = {name: tuple(value.shape[: -4 if name == "extra_view_images" else -3]) for name, value in images.items()}
    axes = next(iter(lead.values()))
    if any(each != axes for each in lead.values()):
        raise RefereeError(f"the cameras show different numbers of frames: {lead}")
    arrays = {
        name: np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value) for name, value in images.items()
    }
    return {name: value.reshape(-1, *value.shape[len(axes) :]) for name, value in arrays.items()}, axes


def has_tensors(value: Any) -> bool:
    """Whether there is a tensor anywhere in it, so that an answer should be one."""
    if isinstance(value, Mapping):
        return any(has_tensors(each) for each in value.values())
    if isinstance(value, list | tuple):
        return any(has_tensors(each) for each in value)
    return isinstance(value, Tensor)


def like(rewards: np.ndarray, given: Any) -> Any:
    """Rewards as a tensor where tensors were given."""
    return torch.from_numpy(np.ascontiguousarray(rewards)) if has_tensors(given) else rewards


def rollout_observations(rollout: Any) -> list[Any] | None:
    """The observations of a rollout result, one per step, out of `transitions` or `forward_inputs`; None: it is none.

    A transition is what was seen after the step: `next_obs`, the second of a pair, or the observation itself.
    """
    for name in ("transitions", "forward_inputs"):
        steps = rollout.get(name) if isinstance(rollout, Mapping) else getattr(rollout, name, None)
        if steps is not None and len(steps):
            return list(_observed(steps))
    return None


def _observed(steps: Any) -> Iterator[Any]:
    for step in steps:
        if isinstance(step, tuple | list):
            yield step[1] if len(step) > 1 else step[0]
        elif isinstance(step, Mapping):
            yield next((step[name] for name in ("next_obs", "next_observations", "obs") if name in step), step)
        else:
            yield step
