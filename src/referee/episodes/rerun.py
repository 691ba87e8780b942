"""Episodes as a Rerun recording, to scrub through frames, success, reward and progress side by side."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from referee import files
from referee.episodes.episode import Episode, EpisodeError
from referee.episodes.optional import require

TIMELINE = "frame"
JPEG_QUALITY = 90


def save_recording(path: Path, episodes: Iterable[Episode]) -> None:
    """Write a `.rrd` file; each episode is a branch, and frames are numbered from 0 in each.

    Under `<episode>/`: `images/<camera>` (as JPEG), `success`, `reward` (of the step that led to the frame) and
    every signal, as `progress`.
    """
    rerun = require("rerun", extra="rerun", what="a Rerun recording")
    if path.suffix != ".rrd":
        raise EpisodeError(f"{path}: a Rerun recording ends in .rrd")
    try:
        with files.replacing(path) as temporary:
            stream = rerun.RecordingStream("referee")
            try:
                stream.save(str(temporary))
                stream.send_recording_name(path.stem)
                for number, episode in enumerate(episodes):
                    _log(rerun, stream, f"{number:04d}", episode)
                stream.flush()
            finally:
                stream.disconnect()
    except OSError as error:
        raise EpisodeError(f"cannot write {path} ({error.strerror or error})") from error


def _log(rerun: Any, stream: Any, name: str, episode: Episode) -> None:
    meta = episode.meta
    about = f"{meta.id}\n{meta.description or meta.task}\n{meta.source}".strip()
    stream.log(name, rerun.TextDocument(about), static=True)
    for i in range(episode.states_count):
        stream.set_time(TIMELINE, sequence=i)
        for camera, frames in _views(episode).items():
            stream.log(
                rerun.new_entity_path([name, "images", camera]),
                rerun.Image(frames[i]).compress(jpeg_quality=JPEG_QUALITY),
            )
    for line, values in _lines(episode).items():
        numbers = np.arange(episode.states_count - len(values), episode.states_count)
        stream.send_columns(
            rerun.new_entity_path([name, line]),
            indexes=[rerun.TimeColumn(TIMELINE, sequence=numbers)],
            columns=rerun.Scalars.columns(scalars=values),
        )


def _views(episode: Episode) -> dict[str, np.ndarray]:
    if "main_images" not in episode.observations:
        return {}
    extra = episode.observations.get("extra_view_images")
    views = [episode.observations["main_images"], *([] if extra is None else np.moveaxis(extra, 1, 0))]
    names = episode.meta.cameras or tuple(f"camera_{i}" for i in range(len(views)))
    return dict(zip(names, views, strict=True))


def _lines(episode: Episode) -> dict[str, np.ndarray]:
    """Numbers over frames: T+1 each, the reward T."""
    lines = {name: value for name, value in episode.signals.items() if value.ndim == 1}
    if episode.success is not None:
        lines["success"] = episode.success
    lines["reward"] = episode.rewards
    return {name: value.astype(np.float64) for name, value in lines.items()}
