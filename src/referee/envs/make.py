"""From a configuration to an environment."""

from __future__ import annotations

from referee.config.arm import FrankaEnvConfig
from referee.config.gym import GymEnvConfig
from referee.config.maniskill import ManiSkillEnvConfig
from referee.config.schema import EnvConfig
from referee.envs.contract import RefereeVectorEnv
from referee.robots.spacemouse import InputDevice


def make_vec(config: EnvConfig, device: InputDevice | None = None) -> RefereeVectorEnv:
    """The environment that `config` describes, chosen by its `env_type`. device: that an arm is led with, if given."""
    if isinstance(config, FrankaEnvConfig):
        from referee.envs.franka.intervention import make_arm

        return make_arm(config, device)
    if isinstance(config, ManiSkillEnvConfig):
        from referee.envs.maniskill.env import ManiSkillVectorEnv

        return ManiSkillVectorEnv(config)
    if isinstance(config, GymEnvConfig):
        from referee.envs.gym.env import GymVectorEnv

        return GymVectorEnv(config)
    from referee.envs.panda.env import PandaVectorEnv

    return PandaVectorEnv(config)
