"""From a configuration to an environment."""

from __future__ import annotations

from referee.config.schema import PandaEnvConfig
from referee.envs.contract import RefereeVectorEnv


def make_vec(config: PandaEnvConfig) -> RefereeVectorEnv:
    """The environment that `config` describes, chosen by its `env_type`."""
    from referee.envs.panda.env import PandaVectorEnv

    return PandaVectorEnv(config)
