"""Recipe: episodes of any format into another one, with their labels, and what was assumed on the way."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress

from referee import files
from referee.config.collection import ExportConfig
from referee.episodes import Episode, EpisodeStore
from referee.episodes.collection import open_sink
from referee.episodes.formats.aligned import LEFT_OUT
from referee.episodes.formats.detect import is_store, read_named, with_labels
from referee.episodes.formats.frame_labels import FrameLabels, with_success
from referee.episodes.formats.step_success import NEXT_SUCCESS, Frame, StepSuccess, by_steps
from referee.episodes.store import LABELS
from referee.episodes.writer import Sink
from referee.errors import RefereeError
from referee.labels.log import SUCCESS, UNKNOWN, LabelLog, Word

Named = Iterator[tuple[str, Episode]]


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(ExportConfig):
    """What a conversion changes on the way."""

    labels: Path | None = None
    """A labels file; see `frame_labels`."""
    success_from: str | None = None
    """`reward` or `reward>=LEVEL`: label by the rewards."""
    success_at: Frame | None = None
    """Which frame a reward or LeRobot's `next.success` labels; see `step_success`."""
    task: str = ""
    """The task in words, for episodes that do not say it."""


@dataclass
class _Tally:
    """What to say at the end."""

    episodes: int = 0
    bytes: int = 0
    unlabelled: int = 0
    next_success: int = 0
    left_out: int = 0
    tasks: Counter[str] = field(default_factory=Counter)

    def see(self, episode: Episode) -> None:
        """Count an episode as it is written."""
        meta = episode.meta
        self.episodes += 1
        self.bytes += episode.nbytes
        self.unlabelled += episode.success is None
        self.next_success += NEXT_SUCCESS in episode.signals and "success_from" not in meta.extra
        self.left_out += LEFT_OUT in meta.extra
        self.tasks[meta.description or meta.task] += 1


@dataclass(frozen=True, kw_only=True)
class Converted:
    """A conversion that is done."""

    out: Path
    episodes: int
    bytes: int
    export_format: str
    notes: tuple[str, ...]
    """What was assumed, and how to have it otherwise."""


def convert(source: Path, out: Path, console: Console, options: ConvertOptions) -> Converted:
    """Read episodes in any format that we know and write them in another; `out` appears when all of it is there."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RefereeError(f"{out} is there already: name a folder that is new, or remove this one (rm -r {out})")
    if not source.exists():
        raise RefereeError(f"{source} does not exist")
    source_episodes, tally = _Source(source, options), _Tally()
    try:
        with files.building(out) as part:
            _write(source_episodes.read(part), open_sink(options.export_format, part), source, console, tally)
    except OSError as error:
        raise RefereeError(f"cannot write {out} ({error.strerror or error})") from error
    return Converted(
        out=out,
        episodes=tally.episodes,
        bytes=tally.bytes,
        export_format=options.export_format,
        notes=tuple(_notes(source_episodes, tally)),
    )


class _Source:
    """The episodes of a source with what the options say about them."""

    def __init__(self, path: Path, options: ConvertOptions) -> None:
        self.path, self.options = path, options
        self.labels = None if options.labels is None else FrameLabels(options.labels)
        self.rule: StepSuccess | None = None
        if options.success_from is not None or options.success_at is not None:
            self.rule = StepSuccess(options.success_from, options.success_at or "next")
        self.partly = 0
        """Episodes that lost their labels because some of their frames have none."""

    def read(self, part: Path) -> Named:
        """All of them; part: the folder that is written, where the label log of a store goes."""
        for name, episode in self._of_store(part) if is_store(self.path) else self._of_files():
            meta = episode.meta
            if self.options.task and not meta.description:
                yield name, replace(episode, meta=replace(meta, description=self.options.task))
            else:
                yield name, episode

    def _of_files(self) -> Named:
        episodes = read_named(self.path)
        if self.rule is not None:
            episodes = by_steps(episodes, self.rule)
        return episodes if self.labels is None else with_labels(episodes, self.labels, self.path)

    def _of_store(self, part: Path) -> Named:
        """The label log of a store goes into a native copy, and is laid over the episodes for all other formats."""
        store, native = EpisodeStore(self.path, create=False), self.options.export_format == "native"
        for reason in store.broken.values():
            raise RefereeError(reason)
        if self.labels is not None:
            self.labels.check_names(store.rows)
        with tempfile.TemporaryDirectory() as beside:
            log, before = LabelLog((part if native else Path(beside)) / LABELS), LabelLog.of(store)
            if before.words:
                log.adopt(before)
            for episode in store:
                name = episode.meta.id
                found = episode if self.rule is None else self.rule.apply(name, episode)
                if words := self._words(found, log):
                    log.extend(words)
                yield name, found if native or not log.words else self._resolved(found, log)

    def _words(self, episode: Episode, log: LabelLog) -> list[Word]:
        """What the labels file says about an episode of a store, for its log."""
        if self.labels is None:
            return []
        name, file = episode.meta.id, self.labels.path.name
        rows = self.labels.rows(name)
        spans = [self.labels.span(row, name, episode.states_count) for row in rows]
        words = [Word(name, row.success, span, "file", file) for row, span in zip(rows, spans, strict=True)]
        if words and (log.resolve(episode) == UNKNOWN).all():
            words.insert(0, Word(name, False, None, "file", file))
        return words

    def _resolved(self, episode: Episode, log: LabelLog) -> Episode:
        """An episode with the labels of a log inside it; where some frames have none, it can hold none at all."""
        found = log.resolve(episode)
        if (found == UNKNOWN).any():
            self.partly += not (found == UNKNOWN).all()
            return replace(episode, success=None)
        same = episode.success is not None and np.array_equal(found == SUCCESS, episode.success)
        return episode if same else with_success(episode, found == SUCCESS, "label log")


def _write(episodes: Named, sink: Sink, source: Path, console: Console, tally: _Tally) -> None:
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"converting {source.name}", total=None)
        for _, episode in episodes:
            sink.append(episode)
            tally.see(episode)
            progress.update(task, completed=tally.episodes)
    close = getattr(sink, "close", None)
    if close is not None:
        close()
    if not tally.episodes:
        raise RefereeError(f"{source} holds no episodes")


def _notes(source: _Source, tally: _Tally) -> Iterator[str]:
    """What was assumed, and how to have it otherwise."""
    options, rule, unlabelled = source.options, source.rule, tally.unlabelled - source.partly
    tasks = [(task, count) for task, count in tally.tasks.most_common(3) if task]
    yield from (f"task: {task} ({count} of {tally.episodes} episodes)" for task, count in tasks)
    if tally.tasks[""]:
        yield f"{tally.tasks['']} episodes do not say their task: --task 'pick up the cube' says it"
    if tally.next_success:
        yield "next.success labels the frame of its own row; --success-at next takes it for the frame after"
    if rule is not None and rule.lost:
        yield (
            f"{len(rule.lost)} episodes (as {rule.lost[0]}) lost their only success: it is about the state after the "
            "last row, which is not in the file; --success-at same labels the last row itself"
        )
    if tally.left_out:
        yield f"the last action of {tally.left_out} episodes is left out: the state after it is not in the file"
    if unlabelled:
        yield f"{unlabelled} episodes have no labels: --labels FILE or --success-from reward"
    if source.partly:
        yield f"{source.partly} episodes are labelled in part and written without labels: native keeps the label log"
    if options.export_format == "lerobot":
        yield (
            "each episode ends in a row of its last state, marked referee.is_last_state, whose action repeats the one "
            "before: other readers see one row more than there were steps"
        )
