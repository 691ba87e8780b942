"""Worlds to act in: the vector-env contract and the environments that keep it."""

from referee.envs.contract import Observation, RefereeVectorEnv
from referee.envs.make import make_vec

__all__ = ["Observation", "RefereeVectorEnv", "make_vec"]
