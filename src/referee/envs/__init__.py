"""Worlds to act in: the vector-env contract and the environments that keep it."""

from referee.envs.contract import Observation, RefereeVectorEnv
from referee.envs.make import make_vec
from referee.envs.single import SingleArm, register

__all__ = ["Observation", "RefereeVectorEnv", "SingleArm", "make_vec"]

register()
