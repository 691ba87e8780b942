"""What we know of ManiSkill's tasks beyond what they say themselves: words, and which success a frame can show."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from referee.errors import RefereeError

Truth = Mapping[str, Any]
"""What a task's `evaluate` answers: named tensors [n]."""

DESCRIPTIONS = {
    "PickCube-v1": "Pick up the red cube and hold it at the green ball.",
    "PushCube-v1": "Push the blue cube onto the red and white target.",
    "PullCube-v1": "Pull the blue cube onto the red and white target.",
    "StackCube-v1": "Stack the red cube on the green cube and let it go.",
    "PegInsertionSide-v1": "Put the coloured end of the peg into the hole of the box.",
    "PlugCharger-v1": "Plug the charger into the wall receptacle.",
}

VISIBLE: Mapping[str, Callable[[Truth], Any]] = {
    # The task also asks for a robot at rest, which no single frame shows.
    "PickCube-v1": lambda truth: truth["is_obj_placed"],
    # The task also asks for a cube at rest.
    "StackCube-v1": lambda truth: truth["is_cubeA_on_cubeB"] & ~truth["is_cubeA_grasped"],
    # The rest ask for poses alone.
    **{
        task: lambda truth: truth["success"]
        for task in ("PushCube-v1", "PullCube-v1", "PegInsertionSide-v1", "PlugCharger-v1")
    },
}
AT_REST = {"PickCube-v1": "the robot", "StackCube-v1": "the cube"}
"""What has to stand still besides, which no frame shows."""
GRASPS = ("is_grasped", "is_cubeA_grasped")
"""How tasks call it that the robot holds the thing."""


def success_test(task: str, definition: str) -> Callable[[Truth], Any]:
    """From what a task answers to what counts as success (`task` or `visible`)."""
    if definition == "task":
        return lambda truth: truth["success"]
    if task not in VISIBLE:
        raise RefereeError(
            f"env.*.success=visible is known for {', '.join(VISIBLE)}, not for {task}: set env.*.success=task"
        )
    return VISIBLE[task]


def unseen(task: str, definition: str) -> str | None:
    """What is wrong with labels of frames by this definition of success; None if nothing is."""
    if definition != "task" or task not in AT_REST:
        return None
    return (
        f"success of {task} asks that {AT_REST[task]} stands still, which no frame shows: "
        "for labels and for a reward model set env.train.success=visible (or env.eval.success)"
    )


def describe(task: str, documentation: str | None) -> str:
    """What is to be done, in words; the task's own first sentence where we have none."""
    if task in DESCRIPTIONS:
        return DESCRIPTIONS[task]
    text = re.sub(r"\*\*.*?\*\*:?", " ", documentation or "")
    sentence = " ".join(text.split()).split(". ")[0].rstrip(".")
    return f"{sentence}." if sentence else f"Solve the task {task}."
