"""What RLinf's guides mean without saying it: values that follow from the spelling of a reward model's keys.

A key that somebody names, in a file or on the command line, is never changed here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from referee.config.leaves import Leaf, Leaves, Origin, Path
from referee.config.translator import COMMAND, Translated

SPELLINGS = {
    "reward.reward_model.": ("000", "003"),
    "reward.resnet.": ("002",),
    "reward.reward_model_type": ("002",),
    "reward.mode": ("002",),
}
"""Keys that choose a reward model, or how it is used, by their beginnings: the guides that write them so."""
WORKFLOW = ("000", "003")
WEIGHTS = (".pt", ".pth", ".safetensors", ".bin")
"""Files without a calibration of their own."""


@dataclass(frozen=True)
class Implied:
    """A value that a configuration in the spelling of some guides gets, unless it names another."""

    guides: tuple[str, ...]
    key: str
    value: object
    effect: str
    advice: str = ""
    """What is recommended; worth a line whenever the value is implied."""
    only_if: str = ""


EACH = "reward_mode=per_step, reward_type=binary"
IMPLIED = (
    Implied(
        ("000", "002", "003"), "reward.reward_mode", "per_step", "every observation is scored",
        advice="terminal, which is harder to exploit and far cheaper",
    ),
    Implied(
        WORKFLOW, "reward.reward_threshold", 0.5, "a probability of 0.5 is a success",
        advice="null, the artifact's own calibrated threshold and gate",
    ),
    Implied(WORKFLOW, "reward.gate_k", 1, "each observation counts by itself", only_if=EACH),
    Implied(WORKFLOW, "reward.gate_n", 1, "each observation counts by itself", only_if=EACH),
    Implied(
        WORKFLOW, "reward.below_threshold", "keep", "a probability below the threshold is used as it is",
        only_if="reward_type=continuous",
    ),
)  # fmt: skip
"""In the order in which they are decided; the conditions are checked by `_applies`."""


def imply(leaves: Leaves, translated: tuple[Translated, ...]) -> tuple[Leaves, list[str], list[tuple[Implied, str]]]:
    """Complete leaves with what the spelling means, what to say about it, and what was implied by which source."""
    spelled = _spelled(translated)
    if not spelled or not _scores(leaves):
        return leaves, [], []
    leaves, lines, done = dict(leaves), [], []
    for each in IMPLIED:
        guide = next((guide for guide in each.guides if guide in spelled), "")
        path: Path = tuple(each.key.split("."))
        if not guide or leaves[path].origin.kind != "default" or not _applies(each, leaves):
            continue
        source, written = spelled[guide]
        kind = Origin(COMMAND) if source == COMMAND else Origin("file", source)
        leaves[path] = Leaf(each.value, replace(kind, older=written))
        done.append((replace(each, guides=(guide,)), source))
        if each.advice and not (each.key == "reward.reward_threshold" and _weights_alone(leaves)):
            lines.append(f"{each.key}={each.value} ({source}, as in RLinf's guide); recommended: {each.advice}")
    return leaves, lines, done


def _spelled(translated: tuple[Translated, ...]) -> dict[str, tuple[str, str]]:
    """Guides by number: the last source that follows one, and the key that shows it."""
    return {
        guide: (each.source, entry.written)
        for each in translated
        for entry in each.entries
        for beginning, guides in SPELLINGS.items()
        if entry.written == beginning or (beginning.endswith(".") and entry.written.startswith(beginning))
        for guide in guides
    }


def _scores(leaves: Leaves) -> bool:
    """Whether an image model scores what a policy does."""
    value = {name: leaves[path].value for name, path in _WATCHED.items() if path in leaves}
    on = value.get("recipe") == "train_policy" and bool(value.get("use_reward_model"))
    return on and value.get("model_type") not in ("vlm", "history_vlm")


def _applies(each: Implied, leaves: Leaves) -> bool:
    value = {name: leaves["reward", name].value for name in ("reward_mode", "reward_type", "reward_threshold")}
    if each.key in ("reward.gate_k", "reward.gate_n") and value["reward_threshold"] is None:
        return False  # the artifact's own calibration is asked for, and the gate is part of it
    conditions = dict(condition.split("=") for condition in each.only_if.split(", ") if condition)
    return all(value[name] == wanted for name, wanted in conditions.items())


def _weights_alone(leaves: Leaves) -> bool:
    return str(leaves[_WATCHED["model_path"]].value or "").endswith(WEIGHTS)


_WATCHED: dict[str, Path] = {
    "recipe": ("runner", "recipe"),
    "use_reward_model": ("reward", "use_reward_model"),
    "model_type": ("reward", "model", "model_type"),
    "model_path": ("reward", "model", "model_path"),
}
