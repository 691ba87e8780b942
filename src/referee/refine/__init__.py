"""Asking about what the policy shows, learning from the answers, and changing the model that pays."""

from referee.refine.select import Candidates, Chosen, choose

__all__ = ["Candidates", "Chosen", "choose"]
