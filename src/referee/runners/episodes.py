"""Recipes over recorded episodes: list, check, look at, merge."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from referee.datasets.source import left_out, resolve
from referee.episodes import Episode, EpisodeError, EpisodeStore
from referee.episodes.formats.detect import read_any, read_named
from referee.episodes.formats.frames import save_mp4
from referee.episodes.health import Health
from referee.episodes.journal import recover
from referee.episodes.store import LABELS, Row, refuse_foreign
from referee.errors import RefereeError
from referee.labels.log import LabelLog
from referee.metrics import Rate
from referee.optional import require
from referee.pictures import GREEN, GREY, MARK, atomic_save, banner, border, check_writable, contact_sheet, save_gif

_log = logging.getLogger(__name__)
LOOKED_AT = 16
"""Episodes of a store whose pictures and labels `ls` looks at."""


def ls(source: Path, console: Console, *, rows: int = 10) -> None:
    """Counts, success and size, and the newest episodes."""
    listed, notes = _rows(source)
    if not listed:
        console.print(f"{source}: no episodes", soft_wrap=True)
        _warn(console, notes)
        return
    labelled = [row for row in listed if row.success_once is not None]
    steps, size = sum(row.steps for row in listed), size_text(sum(row.bytes for row in listed))
    console.print(f"[bold]{escape(str(source))}[/]: {len(listed)} episodes, {steps:,} steps, {size}", highlight=False,
                  soft_wrap=True)  # fmt: skip
    if labelled:
        for text, flags in (
            ("success at any time", [row.success_once for row in labelled]),
            ("success at the end", [row.success_at_end for row in labelled]),
        ):
            console.print(f"  {text:<20} {Rate(sum(map(bool, flags)), len(flags))}", highlight=False)
    if len(labelled) < len(listed):
        console.print(f"  {len(listed) - len(labelled)} episodes are not labelled", highlight=False)
    for what in ("task", "source"):
        counts = Counter(getattr(row, what) or "unknown" for row in listed)
        named = [f"{name} {n}" for name, n in counts.most_common(3)] + ["…"] * (len(counts) > 3)
        console.print(f"  {what:<20} {', '.join(named)}", highlight=False, soft_wrap=True, markup=False)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("id", "steps", "success", "at the end", "cameras", "size"):
        table.add_column(heading, justify="right" if heading in ("steps", "size") else "left")
    for row in listed[-rows:]:
        table.add_row(escape(row.id), str(row.steps), _yes(row.success_once), _yes(row.success_at_end),
                      escape(", ".join(row.cameras)), size_text(row.bytes))  # fmt: skip
    console.print(table)
    _warn(console, notes)


def _warn(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(f"warning: {line}", style="bold yellow", highlight=False, markup=False, soft_wrap=True)


def check(source: Path, console: Console, *, adopt: bool = False) -> None:
    """Read every byte of a store; what is wrong is named, and ends in an error.

    adopt: bring back journals, too, of which nobody can tell whether their run has ended.
    """
    store = EpisodeStore(source, create=False)
    back = recover(store, force=adopt, say=lambda line: console.print(line, soft_wrap=True, markup=False))
    if back:
        console.print(f"brought back {len(back)} episodes from journals that nobody writes to any more")
    problems, labels = store.check(), LabelLog.of(store)
    for problem in [*problems.values(), *(f"{labels.path}: {each}" for each in labels.ignored.values())]:
        console.print(f"[red]✗[/] {escape(problem)}", highlight=False, soft_wrap=True)
    if problems:
        raise RefereeError(f"{len(problems)} of {len(store.rows) + len(store.broken)} episodes in {source} are broken: "
                           "move their files away, or bring them back from a copy")  # fmt: skip
    if labels.ignored:
        raise RefereeError(f"{len(labels.ignored)} lines of {labels.path} are ignored: see above")
    if store.without_checksum:
        console.print(f"{store.without_checksum} episodes are of an older version and have no checksum of all bytes: "
                      "`referee episodes convert` gives them one", soft_wrap=True)  # fmt: skip
    console.print(f"[green]✓[/] {len(store)} episodes in {source} are whole", soft_wrap=True)
    health = Health()
    for id in store.rows:
        episode = store.read(id)
        health.look(episode, labels.resolve(episode))
    _warn(console, health.warnings())


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


def merge(sources: Sequence[Path], out: Path, console: Console) -> None:
    """Copy the episodes and labels of several stores into one; an id that is there already must be the same file."""
    stores = [EpisodeStore(source, create=False) for source in sources]
    for store in stores:
        for reason in store.broken.values():
            raise EpisodeError(f"{reason}: move it away, or bring it back from a copy; nothing was merged")
    refuse_foreign(out)
    goal, copied = EpisodeStore(out), 0
    before = len(goal)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("merging", total=sum(map(len, stores)))
        for store in stores:
            for id in store.rows:
                progress.advance(task)
                if id in goal.rows:
                    if store.path(id).read_bytes() != goal.path(id).read_bytes():
                        raise EpisodeError(f"episode {id} is in {store.root} and in {out}, but they differ")
                    continue
                goal.append(store.read(id, verify=True))
                copied += 1
    for store in stores:
        LabelLog.of(goal).adopt(LabelLog.of(store))
    there = f"{before} were there, " if before else ""
    console.print(f"{out}: {there}{copied} episodes copied, {len(goal)} in all", soft_wrap=True)


def _rows(source: Path) -> tuple[list[Row], list[str]]:
    """A row for each episode, and what is wrong with them."""
    if (source / "episodes").is_dir():
        store = EpisodeStore(source, create=False)
        return list(store.rows.values()), [*left_out(store), *_sampled_warnings(store)]
    if not source.exists():
        raise RefereeError(f"{source} does not exist")
    health, rows = Health(), []
    for name, episode in read_named(source):
        health.look(episode)
        rows.append(replace(Row.of(episode, episode.nbytes), id=name))
    return rows, health.warnings()


def _sampled_warnings(store: EpisodeStore) -> list[str]:
    """What is wrong with a few episodes spread over a store; their data are not verified, so that this is quick."""
    ids = list(store.rows)
    some = [ids[i] for i in np.unique(np.linspace(0, len(ids) - 1, LOOKED_AT).round().astype(int))] if ids else []
    health, log = Health(sampled=len(some) < len(ids)), LabelLog.of(store)
    for id in some:
        episode = store.read(id)
        health.look(episode, log.resolve(episode))
    rows = store.rows.values()
    if not health.episodes or (
        any(row.success_once for row in rows) and any(row.success_at_end is False for row in rows)
    ):
        return health.picture_warnings()
    return health.warnings()


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


def _yes(value: bool | None) -> str:
    return "unknown" if value is None else "yes" if value else "no"


def size_text(count: float) -> str:
    """Bytes, for people."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
