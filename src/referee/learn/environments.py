"""The environments of a run, recorded if its configuration says so."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from referee.config import Config
from referee.config.arm import ROBOT_IP, FrankaEnvConfig
from referee.config.maniskill import ManiSkillEnvConfig
from referee.config.schema import EnvConfig
from referee.envs import RefereeVectorEnv, make_vec
from referee.envs.maniskill.tasks import unseen
from referee.envs.tasks import plain_task
from referee.episodes.collection import collecting
from referee.errors import ConfigError
from referee.models import Artifact
from referee.rl.encoded import EncodedEnv
from referee.robots.spacemouse import InputDevice

_log = logging.getLogger(__name__)


def make_env(config: EnvConfig, folder: Path, source: str, device: InputDevice | None = None) -> RefereeVectorEnv:
    """The environment that `config` describes; episodes say that they come from `source`. device: see `make_vec`."""
    if config.data_collection.enabled:
        _warn_of_unseen(config)
    world = make_vec(config, device)
    if config.data_collection.enabled and not world.cameras and _wants_pictures(config):
        world.close()
        why = f" ({world.unwrapped.undrawn})" if world.unwrapped.undrawn else ""
        draws = "name a function that draws (env.*.images=module:function), or " if hasattr(config, "images") else ""
        raise ConfigError(
            f"{config.task} draws no pictures{why}, and a reward model learns from nothing else: {draws}record states "
            "alone with env.*.cameras=[]"
        )
    env = collecting(world, config.data_collection, folder=folder, task=config.task, source=source)
    return env if config.encoder is None else EncodedEnv(env, Artifact.open(config.encoder))


def _wants_pictures(config: EnvConfig) -> bool:
    """Whether nobody has said that states alone are recorded."""
    return getattr(config, "cameras", None) is None and config.data_collection.cameras is None


def _warn_of_unseen(config: EnvConfig) -> None:
    """Say it, where frames are labelled or judged by a success that they do not show."""
    if isinstance(config, ManiSkillEnvConfig) and (reason := unseen(config.task, config.success)):
        _log.warning("%s", reason)


def stand_in(config: EnvConfig, folder: Path, source: str) -> RefereeVectorEnv:
    """An environment that is described alike and records nothing: for whoever needs to know what it looks like.

    There is one arm, and whoever acts has it; a twin stands in.
    """
    quiet = replace(config, data_collection=replace(config.data_collection, enabled=False))
    return make_env(quiet.stand_in() if isinstance(quiet, FrankaEnvConfig) else quiet, folder, source)


def with_robot(config: Config) -> Config:
    """The same, with the address of the arm that `cluster.node_groups` names, where the environments name none."""
    groups = [group.hardware for group in config.cluster.node_groups if group.hardware is not None]
    addresses = [unit.robot_ip for hardware in groups for unit in hardware.configs if unit.robot_ip != ROBOT_IP]
    if not addresses:
        return config
    changed: dict[str, Any] = {}
    for name in ("train", "eval"):
        env = getattr(config.env, name)
        if isinstance(env, FrankaEnvConfig) and env.robot.robot_ip in (None, ROBOT_IP):
            changed[name] = replace(env, robot=replace(env.robot, robot_ip=addresses[0]))
    return replace(config, env=replace(config.env, **changed))


def warn_of_reward(config: Config) -> None:
    """Say what of a learned reward is not what it seems."""
    assert config.env.train is not None
    if not config.reward.use_reward_model:
        return
    if not config.env.train.data_collection.enabled:
        _warn_of_unseen(config.env.train)
    if config.reward.gt_success_bonus:
        _log.warning(
            "reward.gt_success_bonus=%g: the ground truth pays beside the model, so this reward is not learned alone",
            config.reward.gt_success_bonus,
        )


def warn_of_another_task(model: Artifact, *here: str) -> None:
    """Say where a model learned other tasks only: it may pay for anything. here: the task, by name and in words."""
    learned = model.provenance.get("tasks", [])
    if learned and not {plain_task(each) for each in learned} & {plain_task(each) for each in here}:
        _log.warning(
            'the reward model learned "%s", but is to judge "%s": audit it on episodes of that before you trust it',
            '", "'.join(learned), here[-1],
        )  # fmt: skip
