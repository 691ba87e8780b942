"""Help of the command: examples of every verb, and "did you mean" for verbs that are mistyped."""

from __future__ import annotations

import argparse
from difflib import get_close_matches
from typing import Any

EXAMPLES = {
    "": (
        "referee run panda_expert runner.expert_noise=0.3 env.eval.data_collection.enabled=true",
        "referee train recordings --out reward",
        "referee audit reward/checkpoints/best_model fresh_recordings",
        "referee run panda_ppo_mlp_resnet_reward reward.model.model_path=reward/checkpoints/best_model",
    ),
    "run": (
        "referee run panda_expert runner.expert_noise=0.3 env.eval.data_collection.enabled=true",
        "referee run panda_ppo_mlp_resnet_reward reward.model.model_path=reward/checkpoints/best_model",
    ),
    "episodes": ("referee episodes ls recordings", "referee episodes view recordings --out film.mp4"),
    "episodes ls": ("referee episodes ls recordings --rows 20",),
    "episodes check": ("referee episodes check recordings",),
    "episodes view": (
        "referee episodes view recordings --episodes 6 --out strips.png",
        "referee episodes view recordings --out film.mp4",
    ),
    "episodes merge": ("referee episodes merge monday tuesday --out week",),
    "episodes convert": (
        "referee episodes convert films recordings --labels labels.csv",
        "referee episodes convert lerobot_data recordings --success-from reward",
        "referee episodes convert image.hdf5 recordings --success-from reward",
        "referee episodes convert recordings dataset --format lerobot",
    ),
    "dataset": ("referee dataset frames --raw-data-path recordings --output-dir frames",),
    "dataset frames": ("referee dataset frames --raw-data-path recordings --output-dir frames --cameras front side",),
    "dataset windows": ("referee dataset windows --raw-data-path recordings --output-dir windows --stride 4",),
    "train": (
        "referee train recordings --out reward",
        "referee train recordings --out reward runner.max_epochs=20 data.cameras=[front]",
    ),
    "audit": (
        "referee audit reward/checkpoints/best_model fresh_recordings",
        "referee audit reward/checkpoints/best_model recordings --skip-training-episodes --out card",
    ),
    "compare": ("referee compare old/checkpoints/best_model new/checkpoints/best_model fresh_recordings",),
    "score": (
        "referee score reward/checkpoints/best_model frame.png",
        "referee score reward/checkpoints/best_model fresh_recordings --gif verdicts.gif",
    ),
    "serve": ("referee serve reward/checkpoints/best_model --token-file token",),
    "refine": ("referee refine run reward/checkpoints/best_model policy_recordings --out refined",),
    "refine run": ("referee refine run reward/checkpoints/best_model policy_recordings --out refined --budget 48",),
    "refine log": ("referee refine log refined --sheets questions",),
    "eval": ("referee eval logs/run --episodes 64",),
    "play": ("referee play --task PickCube --policy expert --out film.gif", "referee play logs/run --out policy.gif"),
    "demo": ("referee demo", "referee demo --task peg --out story"),
    "envs": ("referee envs --out tasks.png",),
    "config": ("referee config list", "referee config show panda_ppo_mlp"),
    "config show": ("referee config show panda_expert env.eval.task=Reach",),
    "config explain": ("referee config explain panda_ppo_mlp_resnet_reward",),
    "config list": ("referee config list",),
    "doctor": ("referee doctor",),
    "robot": ("referee robot check realworld_collect_data",),
    "robot check": ("referee robot check realworld_collect_data robot.driver=twin",),
    "cluster": ("referee cluster check panda_ppo_mlp",),
    "cluster check": ("referee cluster check panda_ppo_mlp",),
    "vlm": ("referee vlm tiny-init tiny_model",),
    "vlm tiny-init": ("referee vlm tiny-init tiny_model --size small",),
    "score-text": ("referee score-text answers.jsonl --rule numeric --out scored.jsonl",),
}
"""By verb; each is one line that can be typed as it stands, with names of your own files."""


class Parser(argparse.ArgumentParser):
    """Names the verb that was probably meant."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            near = get_close_matches(str(value), action.choices, n=1)
            hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(action.choices)}"
            raise argparse.ArgumentError(None, f"there is no verb {value!r}: {hint}")
        super()._check_value(action, value)


def add_examples(parser: argparse.ArgumentParser, name: str = "") -> None:
    """Put examples into the help of a parser and of all of its verbs, and what each does."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "examples:\n" + "\n".join(f"  {each}" for each in EXAMPLES[name])
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help for choice in action._choices_actions}
            for verb, inner in action.choices.items():
                full = f"{name} {verb}".strip()
                inner.description = helps.get(verb)
                add_examples(inner, full)
