"""What episodes look like: a film strip, a film or a Rerun recording."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from referee.datasets.source import left_out, resolve
from referee.episodes import Episode, EpisodeStore
from referee.episodes.formats.detect import read_any
from referee.episodes.formats.frames import save_mp4
from referee.episodes.store import LABELS
from referee.errors import RefereeError
from referee.labels.log import LabelLog
from referee.optional import require
from referee.pictures import GREEN, GREY, MARK, atomic_save, banner, border, check_writable, contact_sheet, save_gif

_log = logging.getLogger(__name__)


def view(source: Path, out: Path, *, ids: Sequence[str] = (), episodes: int = 4, columns: int = 8) -> int:
    """A film strip (.png), a film (.gif, .mp4) or a Rerun recording (.rrd) of some episodes; returns how many."""
    if out.suffix == ".mp4":
        require("av", extra="lerobot", what="writing mp4 files")
    if out.suffix in (".png", ".gif", ".mp4", ".rrd"):
        check_writable(out)
    chosen = _choose(source, ids, episodes)
    if out.suffix == ".rrd":
        from referee.episodes.rerun import save_recording

        save_recording(out, chosen)
        return len(chosen)
    if out.suffix not in (".png", ".gif", ".mp4"):
        raise RefereeError(f"{out}: write a .png (film strip), a .gif or .mp4 (film) or a .rrd (Rerun recording)")
    if out.suffix in (".gif", ".mp4"):
        films = [_film(episode, _labels(source, episode)) for episode in chosen]
        frames = [frame for film in films for frame in [*film, *film[-1:] * 12]]
        if out.suffix == ".gif":
            save_gif(out, frames)
        else:
            save_mp4(out, frames, fps=chosen[0].meta.fps or 20.0, comment=MARK)
        return len(chosen)
    rows = []
    for number, episode in enumerate(chosen):
        pick = np.linspace(0, len(episode), columns).round().astype(int)
        labels = _labels(source, episode)
        for camera, view in _views(episode).items():
            rows.append((f"{number}  {camera}", [_rimmed(view[t], labels[t], 150) for t in pick]))
    headings = ["start", *[""] * (columns - 2), "end"]
    title = f"{source.name or source}: {len(chosen)} episodes, green where a frame is a success"
    atomic_save(contact_sheet(rows, headings, title=title, tile=150), out)
    return len(chosen)


def _choose(source: Path, ids: Sequence[str], episodes: int) -> list[Episode]:
    if not ids:
        return _evenly(source, episodes)
    store = EpisodeStore(source, create=False)
    return [store.read(id, verify=True) for id in ids]


def _evenly(source: Path, count: int) -> list[Episode]:
    """`count` episodes, spread over the whole source."""
    if (source / "episodes").is_dir():
        store = EpisodeStore(source, create=False)
        for line in left_out(store):
            _log.warning("%s", line)
        ids = list(store.rows)
        picks = np.linspace(0, max(len(ids) - 1, 0), min(count, len(ids))).round().astype(int)
        chosen = [store.read(ids[i], verify=True) for i in picks]
    else:
        chosen = [episode for _, episode in zip(range(count), _any(source), strict=False)]
    if not chosen:
        raise RefereeError(f"{source} holds no episodes")
    return chosen


def _any(source: Path) -> Iterator[Episode]:
    if not source.exists():
        raise RefereeError(f"{source} does not exist")
    return read_any(source)


def _views(episode: Episode) -> dict[str, np.ndarray]:
    """The images of each camera by its name."""
    if "main_images" not in episode.observations:
        raise RefereeError(f"episode {episode.meta.id} holds no images to look at")
    return episode.views()


def _labels(source: Path, episode: Episode) -> np.ndarray:
    """int8[T+1]: 1 success, 0 failure, -1 unknown: what was recorded, and what was said of it in a store's log."""
    return resolve(episode, LabelLog(source / LABELS) if (source / LABELS).exists() else None)


def _film(episode: Episode, labels: np.ndarray) -> list[np.ndarray]:
    """All views of each frame side by side, with what is known of its success."""
    frames = []
    for t in range(episode.states_count):
        frame = np.concatenate([_enlarged(view[t], 240) for view in _views(episode).values()], axis=1)
        text = {1: "success", 0: "not yet", -1: "no label"}[int(labels[t])]
        frames.append(banner(frame, text, GREEN if text == "success" else GREY))
    return frames


def _rimmed(frame: np.ndarray, label: int, size: int) -> np.ndarray:
    large = _enlarged(frame, size)
    return border(large, GREEN, width=5) if label == 1 else large


def _enlarged(frame: np.ndarray, size: int) -> np.ndarray:
    """Square, `size` pixels wide; a small frame keeps its pixels visible."""
    exact = Image.Resampling.NEAREST if frame.shape[0] < size else Image.Resampling.LANCZOS
    return np.asarray(Image.fromarray(frame).resize((size, size), exact))
