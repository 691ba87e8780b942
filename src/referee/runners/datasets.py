"""Recipes: from recorded episodes to what a reward model learns from."""

from __future__ import annotations

import logging
from pathlib import Path

from rich.console import Console

from referee.config.datasets import FrameConfig, WindowConfig
from referee.datasets.frames import build_frames
from referee.datasets.source import EpisodeFiles, left_out, open_source
from referee.datasets.windows import INFO, build_windows
from referee.episodes import EpisodeStore
from referee.errors import RefereeError
from referee.labels.log import LabelLog


def frames(source: Path, output: Path, config: FrameConfig, cameras: tuple[str, ...], console: Console) -> None:
    """train.pt and val.pt of single frames."""
    _refuse_used(output, "train.pt")
    episodes, labels = _open(source, console)
    _print(console, build_frames(episodes, output, config, cameras=cameras, labels=labels, name=str(source)))


def windows(source: Path, output: Path, config: WindowConfig, console: Console) -> None:
    """Windows of several frames with the trend in them."""
    _refuse_used(output, INFO)
    episodes, labels = _open(source, console)
    _print(console, build_windows(episodes, output, config, labels=labels, name=str(source)))


def _refuse_used(output: Path, name: str) -> None:
    if (output / name).exists():
        raise RefereeError(
            f"{output} holds a dataset already: choose another --output-dir, or remove it (rm -r {output})"
        )


def _open(source: Path, console: Console) -> tuple[EpisodeStore | EpisodeFiles, LabelLog | None]:
    logging.getLogger("referee.datasets").addHandler(logging.NullHandler())  # warnings are in the summary
    episodes = open_source(source)
    for line in left_out(episodes):
        _print(console, f"warning: {line}")
    return episodes, LabelLog.of(episodes) if isinstance(episodes, EpisodeStore) else None


def _print(console: Console, summary: object) -> None:
    for line in str(summary).splitlines():
        warned = line.startswith("warning:")
        console.print(line, style="bold yellow" if warned else None, highlight=False, soft_wrap=True, markup=False)
