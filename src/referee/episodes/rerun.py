"""Episodes as a Rerun recording, to scrub through frames, success, reward and progress side by side."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from referee import files
from referee.episodes.episode import Episode, EpisodeError
from referee.optional import require

TIMELINE = "frame"
JPEG_QUALITY = 90
PORT = 9876
"""Of a viewer, where its address says none."""
REACH, FLUSH = 2.0, 10.0
"""Seconds in which a viewer must take a connection, and at the end all that it was sent."""
_log = logging.getLogger(__name__)


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
                    _write(rerun, stream, f"{number:04d}", episode)
                stream.flush()
            finally:
                stream.disconnect()
    except OSError as error:
        raise EpisodeError(f"cannot write {path} ({error.strerror or error})") from error


class LiveView:
    """What an arm sees and what is said of it, step by step; `open(None)` is one that nobody looks at."""

    def __init__(self, rerun: Any = None, stream: Any = None) -> None:
        self._rerun, self._stream = rerun, stream

    @classmethod
    @contextlib.contextmanager
    def open(cls, where: str | None) -> Iterator[LiveView]:
        """where: a `.rrd` file to fill, `spawn` to open a viewer here, or the address of one (`rerun+http://…`).

        An address at which nobody listens is warned of: an arm is led, whether somebody looks or not.
        """
        if where is None:
            yield cls()
            return
        rerun = require("rerun", extra="rerun", what="a live view")
        if "://" in where and (problem := _unreachable(where)):
            _log.warning("runner.live_view=%s: %s; going on without it", where, problem)
            yield cls()
            return
        stream = rerun.RecordingStream("referee-teleop")
        try:
            cls._connect(stream, where)
            yield cls(rerun, stream)
            try:
                stream.flush(timeout_sec=FLUSH)
            except (OSError, RuntimeError) as error:
                _log.warning("runner.live_view=%s: not all of it arrived (%s)", where, error)
        finally:
            stream.disconnect()

    @staticmethod
    def _connect(stream: Any, where: str) -> None:
        try:
            if where == "spawn":
                stream.spawn()
            elif where.endswith(".rrd"):
                Path(where).parent.mkdir(parents=True, exist_ok=True)
                stream.save(where)
            elif "://" in where:
                stream.connect_grpc(where)
            else:
                raise EpisodeError(f"runner.live_view is {where!r}: give a .rrd file, spawn, or rerun+http://HOST:PORT")
        except (OSError, RuntimeError) as error:
            raise EpisodeError(f"runner.live_view={where}: {error}") from error

    def show(
        self,
        number: int,
        pictures: Callable[[], Mapping[str, np.ndarray]],
        cameras: Sequence[str],
        *,
        probability: float | None,
        success: bool,
    ) -> None:
        """One step. pictures: gives `main_images` uint8[1,H,W,3] and further views, where somebody looks."""
        if self._stream is None:
            return
        seen = pictures()
        views = [seen["main_images"][0], *(seen["extra_view_images"][0] if "extra_view_images" in seen else ())]
        self._stream.set_time("step", sequence=number)
        for camera, frame in zip(cameras, views, strict=True):
            self._stream.log(f"images/{camera}", self._rerun.Image(frame).compress(jpeg_quality=JPEG_QUALITY))
        if probability is not None:
            self._stream.log("probability", self._rerun.Scalars(probability))
        self._stream.log("success", self._rerun.Scalars(float(success)))


def _unreachable(address: str) -> str | None:
    """Why nobody can look at this address; None if somebody listens there."""
    try:
        parts = urlsplit(address)
        with socket.create_connection((parts.hostname or "", parts.port or PORT), timeout=REACH):
            return None
    except (OSError, ValueError) as error:
        return str(error)


def _write(rerun: Any, stream: Any, name: str, episode: Episode) -> None:
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
