"""Recipes over recorded episodes: list, check, look at, merge, convert."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from referee import files
from referee.datasets.source import resolve
from referee.episodes import Episode, EpisodeError, EpisodeStore
from referee.episodes.collection import open_sink
from referee.episodes.formats.detect import read_any
from referee.episodes.journal import recover
from referee.episodes.store import LABELS, Row
from referee.episodes.writer import Sink
from referee.errors import RefereeError
from referee.labels.log import LabelLog
from referee.metrics import Rate
from referee.pictures import GREEN, GREY, atomic_save, banner, border, check_writable, contact_sheet, save_gif


def ls(source: Path, console: Console, *, rows: int = 10) -> None:
    """Counts, success and size, and the newest episodes."""
    listed = _rows(source)
    if not listed:
        console.print(f"{source}: no episodes", soft_wrap=True)
        return
    labelled = [row for row in listed if row.success_once is not None]
    steps, size = sum(row.steps for row in listed), _size(sum(row.bytes for row in listed))
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
                      escape(", ".join(row.cameras)), _size(row.bytes))  # fmt: skip
    console.print(table)


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


def view(source: Path, out: Path, *, ids: Sequence[str] = (), episodes: int = 4, columns: int = 8) -> int:
    """A film strip (.png), a film (.gif) or a Rerun recording (.rrd) of some episodes; returns how many."""
    chosen = _choose(source, ids, episodes)
    if out.suffix == ".rrd":
        from referee.episodes.rerun import save_recording

        save_recording(out, chosen)
        return len(chosen)
    if out.suffix not in (".png", ".gif"):
        raise RefereeError(f"{out}: write a .png (film strip), a .gif (film) or a .rrd (Rerun recording)")
    check_writable(out)
    if out.suffix == ".gif":
        films = [_film(episode, _labels(source, episode)) for episode in chosen]
        save_gif(out, [frame for film in films for frame in [*film, *film[-1:] * 12]])
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
    goal = EpisodeStore(out)
    copied = 0
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
    console.print(f"{out}: {copied} episodes copied, {len(goal)} in all", soft_wrap=True)


def convert(source: Path, out: Path, console: Console, *, export_format: str, labels: Path | None = None) -> None:
    """Read episodes in any format that we know and write them in another; `out` appears when all of it is there."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RefereeError(f"{out} is there already: name a folder that is new, or remove this one (rm -r {out})")
    if not source.exists():
        raise RefereeError(f"{source} does not exist")
    try:
        with files.building(out) as part:
            count, size = _copy(source, open_sink(export_format, part), console, labels)
    except OSError as error:
        raise RefereeError(f"cannot write {out} ({error.strerror or error})") from error
    console.print(f"{out}: {count} episodes, {_size(size)}, as {export_format}", soft_wrap=True)


def _copy(source: Path, sink: Sink, console: Console, labels: Path | None) -> tuple[int, int]:
    """Write all episodes of a source to a sink; returns how many they are, and their bytes."""
    count, size = 0, 0
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"converting {source.name}", total=None)
        for episode in read_any(source, labels=labels):
            sink.append(episode)
            count, size = count + 1, size + episode.nbytes
            progress.update(task, completed=count)
    close = getattr(sink, "close", None)
    if close is not None:
        close()
    if not count:
        raise RefereeError(f"{source} holds no episodes")
    return count, size


def _rows(source: Path) -> list[Row]:
    if (source / "episodes").is_dir():
        store = EpisodeStore(source, create=False)
        return list(store.rows.values())
    if not source.exists():
        raise RefereeError(f"{source} does not exist")
    return [Row.of(episode, episode.nbytes) for episode in read_any(source)]


def _choose(source: Path, ids: Sequence[str], episodes: int) -> list[Episode]:
    if not ids:
        return _evenly(source, episodes)
    store = EpisodeStore(source, create=False)
    return [store.read(id, verify=True) for id in ids]


def _evenly(source: Path, count: int) -> list[Episode]:
    """`count` episodes, spread over the whole source."""
    if (source / "episodes").is_dir():
        store = EpisodeStore(source, create=False)
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
    extra = episode.observations.get("extra_view_images")
    views = [episode.observations["main_images"]]
    if extra is not None:
        views += [extra[:, i] for i in range(extra.shape[1])]
    names = episode.meta.cameras or [f"view {i}" for i in range(len(views))]
    return dict(zip(names, views, strict=True))


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


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
