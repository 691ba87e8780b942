"""The arm's environment keeps the contract on the twin."""

from typing import Any

from referee.config import FrankaEnvConfig, RobotConfig
from referee.envs import RefereeVectorEnv, make_vec
from referee.envs.conformance import Conformance


def config(num_envs: int = 1, **options: Any) -> FrankaEnvConfig:
    robot = RobotConfig(driver="twin", realtime=False, scene=options.pop("scene", "PegInsertion"))
    return FrankaEnvConfig(robot=robot, num_envs=num_envs, **options)


class TwinConformance(Conformance):
    scene = "PegInsertion"
    control_mode = "ee_delta"

    def make(self, num_envs: int = 3, obs_mode: str = "state", **options: Any) -> RefereeVectorEnv:
        given = {"max_episode_steps": self.horizon, "control_mode": self.control_mode, "scene": self.scene, **options}
        return make_vec(config(num_envs, obs_mode=obs_mode, **given))


class TestPeg(TwinConformance):
    pass


class TestPickCubeWithRotation(TwinConformance):
    scene = "PickCube"
    control_mode = "ee_delta_rotation"
