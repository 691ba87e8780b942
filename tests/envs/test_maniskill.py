"""ManiSkill's tasks keep the contract: states without any driver, pictures with software Vulkan."""

from typing import Any

import pytest
from conformance import Conformance

from referee.config import ManiSkillEnvConfig
from referee.envs import make_vec
from referee.envs.maniskill import vulkan
from referee.envs.maniskill.env import ManiSkillVectorEnv

pytest.importorskip("mani_skill")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not vulkan.has_loader(), reason=vulkan.LOADER_LINE)]
QUICK = {"shader": "unlit", "light_scene": True, "image_size": 64, "cameras": ("front", "side")}


def make(task: str = "PickCube-v1", **options: Any) -> ManiSkillVectorEnv:
    env = make_vec(ManiSkillEnvConfig(task=task, **QUICK | {"num_envs": 1, "num_workers": 1} | options))
    assert isinstance(env, ManiSkillVectorEnv)
    return env


class TestPickCube(Conformance):
    """The whole suite once, in two workers that share three environments."""

    def make(self, num_envs: int = 3, obs_mode: str = "state", **options: Any) -> ManiSkillVectorEnv:
        given = {"max_episode_steps": self.horizon, **options}
        return make(num_envs=num_envs, obs_mode=obs_mode, num_workers=2, **given)
