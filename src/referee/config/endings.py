"""Who ends an episode before its last step, where the keys leave it open, and how that is said."""

from __future__ import annotations

from dataclasses import replace

from referee.config.leaves import Leaves, Path
from referee.config.schema import Config

PAID: Path = ("reward", "terminate_on")
TRENDS = ("vlm", "history_vlm")


def decide(leaves: Leaves) -> Leaves:
    """The same, with an answer where `terminate_on_success` and `reward.terminate_on` are null.

    At an arm, where a way back to the start costs time, a success ends the episode: the truth's, or the model's where
    a reward model pays. In a simulation nothing does, unless a key says so.
    """
    trains = _value(leaves, "runner", "recipe") == "train_policy"
    pays = trains and bool(_value(leaves, "reward", "use_reward_model"))
    at_arm = _value(leaves, "env", "train", "env_type") == "franka"
    answers: dict[Path, object] = {}
    if pays:
        says_success = _value(leaves, "reward", "model", "model_type") not in TRENDS
        answers[PAID] = "model" if at_arm and says_success else "never"
    answers["env", "train", "terminate_on_success"] = not pays or _value(leaves, *PAID) == "truth"
    answers["env", "eval", "terminate_on_success"] = True
    open_ones = {path: leaf for path in answers if (leaf := leaves.get(path)) is not None and leaf.value is None}
    return leaves | {path: replace(leaf, value=answers[path]) for path, leaf in open_ones.items()}


def ending(config: Config) -> str:
    """Who ends the episodes of a policy's training, in one line."""
    train, reward = config.env.train, config.reward
    assert train is not None
    last = "as registered" if train.max_episode_steps is None else f"after {train.max_episode_steps} steps"
    judge = "the truth" if train.terminate_on_success else None
    if reward.use_reward_model and reward.terminate_on == "model":
        judge = "the reward model"
    if judge is None:
        return f"episodes end {last}"
    held = f" for {train.success_hold_steps} steps in a row" if train.success_hold_steps > 1 else ""
    return f"episodes end when {judge} says success{held}, or {last}"


def _value(leaves: Leaves, *path: str) -> object:
    return leaves[path].value if path in leaves else None
