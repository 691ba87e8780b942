"""Referee: reward models for robot reinforcement learning, from recording to a trained policy."""

__version__ = "0.1.0"
