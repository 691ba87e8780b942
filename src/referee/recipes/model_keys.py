"""Keys that describe a saved model: the model itself wins, a warning says where they differ, and runs record it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from referee.config import Loaded
from referee.config.reward_training import BinaryClassifierConfig, ResNetModelConfig, RewardActorConfig
from referee.config.schema import RewardModelConfig
from referee.config.vlm import ParamConfig, VLMModelConfig, values
from referee.models import ModelSpec
from referee.models.artifact import describe
from referee.models.vlm.qwen import read_note, taught_both_ways
from referee.rewards.classifier import OF_A_MODEL, set_fields
from referee.rewards.window_model import chat_as_taught, input_as_taught
from referee.training.described import spec_fields
from referee.training.recipe import TRAINED_AS_SET

TRAINED = {"resnet": ResNetModelConfig, "binary_classifier": BinaryClassifierConfig}


def as_scored(loaded: Loaded) -> Loaded:
    """The same, with the model that scores as it is; a warning names the keys that say something else."""
    reward = loaded.config.reward
    if not reward.use_reward_model or not reward.model.model_path:
        return loaded
    if isinstance(reward.model, VLMModelConfig):
        changes = {} if reward.api.api_base is not None else _as_taught(reward.model)
    else:
        changes = _as_saved(reward.model)
    model: Any = replace(reward.model, **changes)
    config = replace(loaded.config, reward=replace(reward, model=model))
    return replace(loaded, config=config, sources=_sources(loaded, "reward.model", changes, reward.model.model_path))


def as_continued(loaded: Loaded) -> Loaded:
    """The same for a reward model that goes on learning: all but what a training may change is as it was saved."""
    actor = loaded.config.actor
    if not isinstance(actor, RewardActorConfig) or not actor.model.model_path:
        return loaded
    if not Path(actor.model.model_path).exists():
        return loaded  # which the training refuses, naming the key
    given = {name for name in vars(actor.model) if loaded.sources.get(f"actor.model.{name}", "default") != "default"}
    spec = spec_of(actor.model)
    saved = describe(actor.model.model_path, spec, given & OF_A_MODEL, TRAINED_AS_SET)
    cls = TRAINED.get(saved.model_type)
    if cls is None:  # a model of one's own, whose keys the schema does not know
        return loaded
    old = vars(actor.model)
    own = {each.name: getattr(saved, each.name) for each in fields(cls) if each.name in OF_A_MODEL}
    own["crop"] = tuple(f"{camera}:{','.join(map(str, box))}" for camera, box in saved.crop.items())
    if "image_size" not in given:
        own["image_size"] = None  # that of the data, which must fit
    model = cls(**{**{name: old[name] for name in old if name not in OF_A_MODEL}, **own})
    changes = {name: value for name, value in own.items() if old.get(name) != value}
    config = replace(loaded.config, actor=replace(actor, model=model))
    return replace(loaded, config=config, sources=_sources(loaded, "actor.model", changes, actor.model.model_path))


def spec_of(model: ResNetModelConfig) -> ModelSpec:
    """What `actor.model` describes, as far as it can be known before the data are."""
    described = spec_fields(model)
    crop = described["crop"]
    cameras = {"cameras": list(crop)} if crop else {}
    return ModelSpec.from_json({**described, **cameras})


def _as_saved(model: RewardModelConfig) -> dict[str, Any]:
    given = set_fields(model)
    if not given:
        return {}
    saved = describe(str(model.model_path), ModelSpec(**given), given)
    found = {name: getattr(saved, name) for name in given}
    if saved.model_type not in TRAINED:
        found["model_type"] = None  # one of one's own, which the key does not name
    return {name: value for name, value in found.items() if value != getattr(model, name)}


def _as_taught(model: VLMModelConfig) -> dict[str, Any]:
    """How a fine-tuned model is asked, where nobody says otherwise."""
    note = read_note(model.lora_path or str(model.model_path))
    if not note:
        return {}
    name, params = input_as_taught(note, model.input_builder_name, values(model.input_builder_params))[0]
    found: dict[str, Any] = {"use_chat_template": chat_as_taught(note, model.use_chat_template)}
    if (name, params) != (model.input_builder_name, values(model.input_builder_params)):
        found["input_builder_name"] = name
        found["input_builder_params"] = {key: ParamConfig(value=value) for key, value in params.items()} or None
    if model.both_ways is None and model.readout == "score":
        found["both_ways"] = model.model_type == "history_vlm" and taught_both_ways(note)
    return {key: value for key, value in found.items() if value != getattr(model, key)}


def _sources(loaded: Loaded, section: str, changes: Collection[str], path: str) -> dict[str, str]:
    return loaded.sources | {f"{section}.{name}": f"as saved in {path}" for name in changes}
