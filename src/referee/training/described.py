"""What the keys of `actor.model` say of the model to train, as fields of its spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from referee.config.reward_training import ResNetModelConfig
from referee.errors import ConfigError
from referee.models.spec import ModelSpec

STARTS = ("pretrained", "model_path")
"""Weights to start from, which are no part of what a model is."""


def spec_fields(model: ResNetModelConfig | Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `ModelSpec` out of `actor.model`, or out of a mapping that holds such fields already."""
    values = {name: value for name, value in dict(_items(model)).items() if name not in STARTS}
    if isinstance(model, Mapping):
        return values
    for name in ("image_size", "width"):  # null: the data's, the architecture's
        if values[name] is None:
            del values[name]
    values["crop"] = dict(_crop(text) for text in values["crop"])
    own = {name: values.pop(name) for name in tuple(values) if name not in ModelSpec.__dataclass_fields__}
    return {**values, "options": own} if own else values


def _items(model: ResNetModelConfig | Mapping[str, Any]) -> Mapping[str, Any]:
    return model if isinstance(model, Mapping) else vars(model)


def _crop(text: str) -> tuple[str, tuple[int, ...]]:
    camera, _, box = text.partition(":")
    sides = box.split(",")
    if not camera or len(sides) != 4 or not all(side.strip().isdigit() for side in sides):
        raise ConfigError(f"actor.model.crop={text} cannot be read: write camera:top,left,height,width in pixels")
    return camera, tuple(map(int, sides))
