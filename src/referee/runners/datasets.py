"""Recipes: from recorded episodes to what a reward model learns from."""

from __future__ import annotations

import logging
from pathlib import Path

from rich.console import Console

from referee.datasets.frames import FrameOptions, build_frames
from referee.datasets.source import Reread, open_source
from referee.datasets.windows import WindowOptions, build_windows
from referee.episodes import EpisodeStore
from referee.labels.log import LabelLog


def frames(source: Path, output: Path, options: FrameOptions, console: Console) -> None:
    """train.pt and val.pt of single frames."""
    episodes, labels = _open(source)
    _print(console, build_frames(episodes, output, options, labels=labels, name=str(source)))


def windows(source: Path, output: Path, options: WindowOptions, console: Console) -> None:
    """Windows of several frames with the trend in them."""
    episodes, labels = _open(source)
    _print(console, build_windows(episodes, output, options, labels=labels, name=str(source)))


def _open(source: Path) -> tuple[EpisodeStore | Reread, LabelLog | None]:
    logging.getLogger("referee.datasets").addHandler(logging.NullHandler())  # warnings are in the summary
    episodes = open_source(source)
    return episodes, LabelLog.of(episodes) if isinstance(episodes, EpisodeStore) else None


def _print(console: Console, summary: object) -> None:
    for line in str(summary).splitlines():
        warned = line.startswith("warning:")
        console.print(line, style="bold yellow" if warned else None, highlight=False, soft_wrap=True, markup=False)
