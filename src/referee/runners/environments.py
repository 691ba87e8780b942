"""The environment of a run, recorded if its configuration says so, and the reward model that pays in it."""

from __future__ import annotations

import logging
from pathlib import Path

from referee.config.schema import PandaEnvConfig, RewardConfig, RewardModelConfig
from referee.envs import RefereeVectorEnv, make_vec
from referee.episodes.collection import collecting
from referee.errors import ConfigError
from referee.models import Artifact, ModelSpec
from referee.rewards import Alarm, RewardManager, RewardOptions
from referee.workers.reward import RewardWorker

_log = logging.getLogger(__name__)


def make_env(config: PandaEnvConfig, folder: Path, source: str) -> RefereeVectorEnv:
    """The environment that `config` describes; episodes say that they come from `source`."""
    return collecting(make_vec(config), config.data_collection, folder=folder, task=config.task, source=source)


def make_reward(config: RewardConfig, env: RefereeVectorEnv, steps: int) -> RewardWorker | None:
    """The worker that pays in rollouts of so many steps; None where the environment's own reward does."""
    if not config.use_reward_model:
        return None
    names = RewardOptions.__dataclass_fields__
    options = RewardOptions(**{name: getattr(config, name) for name in names})
    manager = RewardManager(
        open_model(config.model),
        options,
        backend=config.model.backend,
        int8=config.model.int8,
        debug_save_dir=config.model.debug_save_dir,
    )
    return RewardWorker(manager, env, steps)


def make_alarm(config: RewardConfig, reward: RewardWorker | None) -> Alarm | None:
    """What watches the reward worker; None where nobody wants it, or where weights came without an artifact."""
    if reward is None or not config.alarm.enabled:
        return None
    if reward.manager.artifact.reference is None:
        _log.warning("the reward model came without a reference of its training frames, so no alarm watches it")
        return None
    return Alarm(reward.manager.artifact)


def open_model(config: RewardModelConfig) -> Artifact:
    """The artifact; or weights alone, of the model that the other keys describe."""
    if config.model_path is None:
        raise ConfigError(
            "reward.model.model_path is not given: name the artifact that pays, as logs/<run>/checkpoints/best_model"
        )
    said = {name: value for name, value in vars(config).items() if value is not None and name in _OF_THE_MODEL}
    return Artifact.open(config.model_path, ModelSpec(**said) if said else None)


_OF_THE_MODEL = set(ModelSpec.__dataclass_fields__)
