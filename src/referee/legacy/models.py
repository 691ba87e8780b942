"""The models of the guides, made from their own arguments and called on images [B,C,H,W] in 0..1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from referee.config import Config, Loaded
from referee.errors import ConfigError
from referee.legacy.configs import SCORES, is_cfg, loaded_of, tree_of
from referee.legacy.images import by_camera
from referee.models import Artifact, binary_classifier, resnet_reward, weights
from referee.models.contract import RewardModel, select_views
from referee.models.spec import ModelError, ModelSpec, square
from referee.models.vlm import judge
from referee.rewards.window_model import make_window_model

Paths = Path | str | None


class _OnImages(RewardModel):
    """A model that is called on images as the guides hold them; five axes are frames that `prepare` has prepared."""

    def forward(self, images: Tensor | Mapping[str, Tensor]) -> Tensor:
        """logits f32[B] of images [B,3,H,W] in 0..1 (or uint8 [B,H,W,3]), or of {image key: images}."""
        if isinstance(images, Tensor) and images.ndim == 5:
            return super().forward(images)
        views = select_views(by_camera(images, self.spec.cameras), self.spec.cameras)  # type: ignore[arg-type]
        return super().forward(self.prepare(views))


class BinaryRewardClassifier(_OnImages, binary_classifier.BinaryRewardClassifier):
    """A ResNet10, a learned weighting of its feature map, and Linear → LayerNorm → Tanh → Linear."""

    def __init__(
        self,
        spec: ModelSpec | None = None,
        *,
        image_keys: Sequence[str] = ("base_camera",),
        image_size: int | Sequence[int] = (3, 64, 64),
        hidden_dim: int = 256,
        num_spatial_blocks: int = 8,
        pretrained_encoder_path: Paths = None,
        use_pretrain: bool = True,
        freeze_encoder: bool = True,
    ) -> None:
        """spec: instead of all others. use_pretrain: weigh the whole map of an encoder, with the weights if given."""
        if spec is None:
            spec = ModelSpec(
                model_type="binary_classifier", arch="resnet10", cameras=tuple(image_keys),
                image_size=square(image_size), hidden_dim=hidden_dim, num_spatial_blocks=num_spatial_blocks,
                pooling="spatial" if use_pretrain else "average", freeze_encoder=freeze_encoder,
            )  # fmt: skip
        encoder = None
        if pretrained_encoder_path is not None and use_pretrain:
            encoder = weights.read_encoder(Path(pretrained_encoder_path))
            spec = weights.adopt(spec, encoder.properties, str(pretrained_encoder_path))
        super().__init__(spec)
        if encoder is not None:
            weights.fill(self.encoder, encoder.state, str(pretrained_encoder_path))
        self.freeze(spec.freeze_encoder)


_OF_RESNET = ("arch", "hidden_dim", "dropout", "image_size", "normalize", "precision", "freeze_encoder")


class ResNetRewardModel(_OnImages, resnet_reward.ResNetRewardModel):
    """A ResNet, its feature map averaged, and a small head: from keywords, or from the keys of a `model` section."""

    def __init__(self, cfg: ModelSpec | DictConfig | Mapping[str, Any] | None = None, /, **keys: Any) -> None:
        """keys: arch, hidden_dim, dropout, image_size, image_keys, normalize, precision, freeze_encoder; pretrained:
        weights of the encoder; model_path or checkpoint_path: weights of the whole model, which also say what it is.
        """
        if isinstance(cfg, ModelSpec):
            super().__init__(cfg)
            self.freeze(cfg.freeze_encoder)
            return
        keys = {**(tree_of(cfg) if cfg is not None else {}), **keys}
        path = keys.pop("model_path", None) or keys.pop("checkpoint_path", None)
        pretrained = keys.pop("pretrained", None) or None
        spec = _resnet_spec(keys)
        if pretrained is True:
            raise ModelError("pretrained is True, but no weights come with Referee: give a local file of torchvision's")
        encoder = None
        if path is not None:
            given = Artifact.open(path, spec, set(keys))
            spec = given.spec.but(freeze_encoder=spec.freeze_encoder)
        elif pretrained is not None:
            encoder = weights.read_encoder(Path(pretrained))
            spec = weights.adopt(spec, encoder.properties, str(pretrained))
        super().__init__(spec)
        if path is not None:
            weights.fill(self, dict(given.model.state_dict()), str(path))
        if encoder is not None:
            weights.fill(self.encoder, encoder.state, str(pretrained))
        self.freeze(spec.freeze_encoder)


def _resnet_spec(keys: dict[str, Any]) -> ModelSpec:
    """The spec that keys of a `model` section describe; resnet18 where no `arch` is named, as in the guides."""
    strange = [name for name in keys if name not in (*_OF_RESNET, "image_keys", "model_type", "debug_save_dir")]
    if strange:
        raise ModelError(f"{strange[0]} is no key of a resnet: they are {', '.join(_OF_RESNET)}")
    values = {"arch": "resnet18", **{name: keys[name] for name in _OF_RESNET if keys.get(name) is not None}}
    if "image_size" in values:
        values["image_size"] = square(values["image_size"])
    if keys.get("image_keys"):
        values["cameras"] = tuple(keys["image_keys"])
    return ModelSpec(**values)


class HistoryVLMRewardModel(judge.HistoryVLMRewardModel):
    """Judges windows of several frames; made from its parts, or from a configuration as the guides write it."""

    _KIND = "history_vlm"

    def __new__(cls, first: Any, *rest: Any, **options: Any) -> Any:
        """The model that a configuration (or its `model` section alone) names; or one of parts."""
        if not is_cfg(first):
            return super().__new__(cls)
        model = window_model(first, cls._KIND)
        if cls._KIND == "history_vlm" or not isinstance(model, judge.HistoryVLMRewardModel):
            return model
        return judge.VLMRewardModel(model.model, model.builder, model.parser, model.how)


class VLMRewardModel(HistoryVLMRewardModel, judge.VLMRewardModel):
    """Judges the current observation alone."""

    _KIND = "vlm"


def window_model(cfg: Config | Loaded | DictConfig | Mapping[str, Any], kind: str | None = None) -> Any:
    """The vision-language model of a configuration, or of its `model` section alone."""
    if not isinstance(cfg, Config | Loaded):
        tree = tree_of(cfg)
        if "reward" not in tree:  # the keys of the model alone
            tree = {"reward": {"use_reward_model": True, "model": tree}}
        if kind is not None:
            tree["reward"]["model"].setdefault("model_type", kind)
        cfg = tree
    reward = loaded_of(cfg, "train_policy", SCORES).config.reward
    if reward.model.model_type not in ("vlm", "history_vlm"):
        raise ConfigError(f"reward.model.model_type is {reward.model.model_type}: use vlm or history_vlm")
    return make_window_model(reward)


def state_of(model: RewardModel) -> dict[str, torch.Tensor]:
    """The weights, as they are saved."""
    return {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
