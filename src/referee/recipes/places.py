"""Which components a run needs a place for, where the cluster section gives places at all."""

from __future__ import annotations

from referee.config import Config
from referee.runtime import Plan
from referee.workers.components import trainer


def check_places(plan: Plan, config: Config) -> None:
    """Refuse a plan that leaves out a component of this run; what it names and nobody uses is no harm."""
    if config.runner.recipe == "train_policy":
        plan["env"]
        if config.reward.use_reward_model and config.reward.terminate_on != "model":
            plan["reward"]
    elif config.runner.recipe == "train_reward":
        plan[trainer(plan)]
