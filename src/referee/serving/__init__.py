"""Scoring over HTTP, for processes that are not ours: ROS nodes, other languages, other machines."""

from referee.serving.server import ScoringServer, serve

__all__ = ["ScoringServer", "serve"]
