"""Configurations as the guides hand them to classes: OmegaConf's, plain dicts, ours, or the name of a preset."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from referee.config import Config, Loaded, load
from referee.errors import ConfigError

Cfg = Config | Loaded | DictConfig | Mapping[str, Any]
SCORES = ("runner", "reward", "cluster")
"""The sections that a reward worker reads."""
OF_REWARD = {"use_reward_model", "model", "reward_model", "resnet", "checkpoint_path"}
"""Keys by which a `reward` section alone is known."""
TRAINS = (*SCORES, "data", "actor", "reward_training")
"""Those that the training of a reward model reads."""


def is_cfg(value: Any) -> bool:
    """Whether it is a configuration, and not what one describes."""
    return isinstance(value, Config | Loaded | DictConfig | Mapping)


def tree_of(cfg: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as plain values; references such as ${runner.output_dir} stay as they are."""
    tree = OmegaConf.to_container(cfg, resolve=False) if isinstance(cfg, DictConfig) else dict(cfg)
    if not isinstance(tree, dict):
        raise ConfigError("a configuration must be a mapping of sections")
    return {str(name): value for name, value in tree.items()}


def trains(cfg: Cfg) -> bool:
    """Whether a configuration is about the training of a reward model: it says what to learn from."""
    if isinstance(cfg, Loaded):
        cfg = cfg.config
    if isinstance(cfg, Config):
        return cfg.runner.recipe == "train_reward"
    tree = tree_of(cfg)
    reward, runner = tree.get("reward") or {}, tree.get("runner") or {}
    return "data" in tree or "data" in reward or "reward_training" in tree or runner.get("recipe") == "train_reward"


def loaded_of(cfg: Cfg, recipe: str, sections: Sequence[str] | None = None) -> Loaded:
    """The checked configuration; keys of the guides are translated as in files.

    sections: those that are read, None: all. A `reward` section alone is taken for one.
    recipe: what the configuration is for, unless it says so itself.
    """
    if isinstance(cfg, Loaded):
        return cfg
    if isinstance(cfg, Config):
        return Loaded(cfg, cfg.runner.recipe, {}, [])
    tree = tree_of(cfg)
    if sections is not None:
        tree = {"reward": tree} if tree.keys() & OF_REWARD else {name: tree[name] for name in sections if name in tree}
    if sections == SCORES:  # a recipe needs an environment, which is never made here
        tree = {"defaults": [f"env/panda@env.{side}" for side in ("train", "eval")], **tree}
    named = (tree.get("runner") or {}).get("recipe")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cfg.yaml"
        OmegaConf.save(OmegaConf.create(tree), file)
        return load(str(file), [] if named and sections is None else [f"runner.recipe={recipe}"])
