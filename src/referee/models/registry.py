"""The models there are, by name. One of your own takes a few lines:

@register("mine")
class Mine(RewardModel):
    def __init__(self, spec):
        super().__init__(spec)
        self.encoder = MyNet()
        self.last = nn.Linear(64 * len(spec.cameras), 1)

    def encode_views(self, views):  # f32[m,3,S,S] -> f32[m,64]
        return self.encoder(views)

    def head(self, features):  # f32[n,64·V] -> f32[n]
        return self.last(features)[:, 0]

`encode_views` is what scoring back ends run: it is exported to ONNX, for any number of pictures (`x.shape[0]`, not
`len(x)`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from referee import cpu
from referee.models.contract import ModelError, ModelSpec, RewardModel

_log = logging.getLogger(__name__)
_models: dict[str, type[RewardModel]] = {}
_ALIASES = {"resnet_reward": "resnet"}
M = TypeVar("M", bound=type[RewardModel])


def register(name: str) -> Callable[[M], M]:
    """A decorator that makes a model known under a name; the name of another model is refused."""

    def add(model: M) -> M:
        known = _models.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (model.__module__, model.__qualname__):
            raise ModelError(f"model_type {name!r} is taken by {known.__module__}.{known.__qualname__}: choose another")
        _models[name] = model
        return model

    return add


def names() -> tuple[str, ...]:
    """The models there are."""
    _ours()
    return tuple(_models)


def build(spec: ModelSpec, *, pretrained: Path | str | None = None) -> RewardModel:
    """A new model; random, or with the encoder of a local file.

    pretrained: a state dict of torchvision, or SERL's ResNet10, as .pt, .pth or .safetensors. What the file says about
        the encoder (its depth, width, norm) wins over the spec, with a warning.
    """
    from referee.models import weights

    _ours()
    name = _ALIASES.get(spec.model_type, spec.model_type)
    if name not in _models:
        raise ModelError(
            f"model_type {spec.model_type!r} is unknown: use one of {', '.join(_models)}, "
            "or import the module that registers it"
        )
    spec = spec.but(model_type=name)
    if spec.precision == "bf16":
        cpu.cap_if_needed()  # its first product could kill this process
    if pretrained is None:
        model = _models[name](spec)
    else:
        found = weights.read_encoder(Path(pretrained))
        spec = weights.adopt(spec, found.properties, str(pretrained), _log)
        model = _models[name](spec)
        weights.fill(model.encoder, found.state, str(pretrained))
    return model.freeze(spec.freeze_encoder)


def _ours() -> None:
    """Register the models of this package."""
    from referee.models import binary_classifier, ensemble, resnet_reward  # noqa: F401
