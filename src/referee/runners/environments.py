"""The environment of a run, recorded if its configuration says so."""

from __future__ import annotations

from pathlib import Path

from referee.config.schema import PandaEnvConfig
from referee.envs import RefereeVectorEnv, make_vec
from referee.episodes.collection import collecting


def make_env(config: PandaEnvConfig, folder: Path, source: str) -> RefereeVectorEnv:
    """The environment that `config` describes; episodes say that they come from `source`."""
    return collecting(make_vec(config), config.data_collection, folder=folder, task=config.task, source=source)
