"""Which component of a plan does what."""

from __future__ import annotations

from referee.runtime import Plan


def trainer(plan: Plan) -> str:
    """The component whose ranks train a reward model: `actor`, where only that has a place."""
    return "actor" if "actor" in plan.ranks and "reward" not in plan.ranks else "reward"
