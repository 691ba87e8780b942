"""Referee: reward models for robot reinforcement learning, from recording to a trained policy."""

from importlib import import_module

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "RewardModelWrapper":  # brings torch: not before somebody asks
        return import_module("referee.rewards.wrapper").RewardModelWrapper
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
