"""From a configuration to an environment."""

from __future__ import annotations

from referee.config.arm import FrankaEnvConfig
from referee.config.maniskill import ManiSkillEnvConfig
from referee.config.schema import EnvConfig
from referee.envs.contract import RefereeVectorEnv


def make_vec(config: EnvConfig) -> RefereeVectorEnv:
    """The environment that `config` describes, chosen by its `env_type`."""
    if isinstance(config, FrankaEnvConfig):
        from referee.envs.franka.intervention import make_arm

        return make_arm(config)
    if isinstance(config, ManiSkillEnvConfig):
        from referee.envs.maniskill.env import ManiSkillVectorEnv

        return ManiSkillVectorEnv(config)
    from referee.envs.panda.env import PandaVectorEnv

    return PandaVectorEnv(config)
