"""The line at the end of a run that can be pasted as it is: the next command, with real paths, quoted for the shell."""

from __future__ import annotations

import shlex
from pathlib import Path


def next_line(*words: str | Path) -> str:
    """`next: referee …`"""
    return f"next: referee {shlex.join(map(str, words))}"


def after_training(artifact: Path, episodes: Path | None) -> str:
    """episodes: what it was trained on, some of which are left for an audit; None where none are."""
    if episodes is None:
        return next_line("serve", artifact)
    return next_line("audit", artifact, episodes, "--skip-training-episodes")


def after_collecting(episodes: Path) -> str:
    """Train a reward model on what was collected: episodes of any format, or frames."""
    return next_line("train", episodes)


def after_policy(run: Path) -> str:
    """See how often a trained policy succeeds."""
    return next_line("eval", run, "--episodes", "256")
