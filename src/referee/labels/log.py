"""The log of labels beside the episodes: who said what about which frames, and when. The last word holds."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from referee import files
from referee.checksums import KEY, ChecksumError, sealed_line, unsealed
from referee.episodes.episode import HELD, Episode, EpisodeError
from referee.episodes.store import LABELS, EpisodeStore

SUCCESS, FAILURE, UNKNOWN = 1, 0, -1
SOURCES = ("env", "keyboard", "pose", "rule", "web", "import", "file")
LIVE = ("keyboard",)
"""Sources that speak while the arm moves, and so are late by the time that a person needs to react."""
Frames = int | tuple[int, int | None] | None
"""One frame, a span [start, stop) where stop None is the end of the episode, or None for all of it."""


@dataclass(frozen=True)
class Word:
    """One line of the log: a value for frames of an episode, or that an earlier word is taken back."""

    episode: str
    value: bool | None = None
    """Success, failure, or None: nobody knows."""
    frames: Frames = None
    source: str = "import"
    who: str = ""
    when: str = ""
    """UTC, ISO 8601."""
    undo: int | None = None
    """The number of the word that this one takes back."""
    number: int = -1
    """Its line in the log, counted from 0; given by the log."""

    def to_json(self) -> str:
        """One line, without its end, that carries its checksum."""
        said: dict[str, Any] = {"undo": self.undo}
        if self.undo is None:
            said = {"frames": self.frames, "value": self.value}
        values = {"episode": self.episode, **said, "source": self.source, "who": self.who, "when": self.when}
        return sealed_line(values)

    @classmethod
    def from_json(cls, line: str | bytes, number: int = -1) -> Word:
        """The inverse; ValueError says what is wrong, ChecksumError that it has changed since it was written."""
        values, _ = unsealed(line)
        frames = values.get("frames")
        word = cls(
            values.get("episode", ""),
            values.get("value"),
            tuple(frames) if isinstance(frames, list) else frames,
            values.get("source", ""),
            values.get("who", ""),
            values.get("when", ""),
            values.get("undo"),
            number,
        )
        word.check()
        return word

    def check(self) -> None:
        """Raise a ValueError unless every field is as it must be."""
        if not isinstance(self.episode, str) or not self.episode:
            raise ValueError("it names no episode")
        if self.source not in SOURCES:
            raise ValueError(f"source is {self.source!r}, not one of {', '.join(SOURCES)}")
        if self.value is not None and type(self.value) is not bool:
            raise ValueError(f"value is {self.value!r}, not true, false or null")
        if not isinstance(self.who, str) or not isinstance(self.when, str):
            raise ValueError("who and when must be text")
        if self.undo is not None and type(self.undo) is not int:
            raise ValueError(f"undo is {self.undo!r}, not the number of a word")
        if not _are_frames(self.frames):
            raise ValueError(f"frames is {self.frames!r}, not a frame, a span [start, stop) or null")


class LabelLog:
    """Words in a file of JSON lines that is only ever appended to; several processes may do so at once.

    `append` returns when the words are on disk. A last line that a kill cut off is ignored, and removed by the next
    append: nobody was told that it was kept.
    """

    def __init__(self, path: Path | str, *, offset_seconds: float = 0.0) -> None:
        """offset_seconds: how late people are; words given live are moved that far towards the start."""
        if offset_seconds < 0:
            raise EpisodeError(f"offset_seconds is {offset_seconds}, but a person cannot react before it happens")
        self.path = Path(path)
        self.offset_seconds = offset_seconds
        self.words: list[Word] = []
        """All words that were there when last looked at, in their order."""
        self.ignored: dict[int, str] = {}
        """Lines that are no labels, or not as they were written, and why."""
        self._end = self._lines = 0
        self._by_episode: dict[str, list[Word]] | None = None
        self.refresh()

    @classmethod
    def of(cls, store: EpisodeStore, *, offset_seconds: float = 0.0) -> LabelLog:
        """The log of a store."""
        return cls(store.root / LABELS, offset_seconds=offset_seconds)

    def append(
        self, episode: str, value: bool | None, *, source: str, frames: Frames = None, who: str | None = None
    ) -> int:
        """Say that frames of an episode are a success (True), a failure (False) or unknown (None); returns its number.

        A key that sets a state says so from a frame on, as `frames=(12, None)`: the next word ends it.
        """
        value = None if value is None else bool(value)  # numpy's are not JSON's
        word = Word(episode, value, _plain(frames), source, user() if who is None else who)
        return self.extend([word])[0]

    def extend(self, words: Sequence[Word]) -> list[int]:
        """The same for many words at once; those without a time get the present one."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        words = [replace(word, when=word.when or now) for word in words]
        for word in words:
            try:
                word.check()
            except ValueError as error:
                raise EpisodeError(f"cannot log {word}: {error}") from error
        with self._open_to_append() as handle:
            return self._write(handle, words)

    def undo(self, number: int | None = None, *, source: str, who: str | None = None) -> int:
        """Take back the word with that number, or else the last one that `who` gave through `source`.

        An undo is a word too: to take it back by its number brings the label back.
        """
        who = user() if who is None else who
        with self._open_to_append() as handle:
            if number is None:
                mine = [word for word in self.standing() if (word.source, word.who) == (source, who)]
                if not mine:
                    raise EpisodeError(f"{self.path}: {who or 'nobody'} has no label from {source} to take back")
                target = mine[-1]
            else:
                named = [word for word in self._in_force() if word.number == number]
                if not named:
                    raise EpisodeError(f"{self.path}: there is no word {number} that could be taken back")
                target = named[0]
            when = datetime.now(UTC).isoformat(timespec="milliseconds")
            word = Word(target.episode, source=source, who=who, when=when, undo=target.number)
            return self._write(handle, [word])[0]

    def adopt(self, other: LabelLog) -> None:
        """Append the words of another log that are not here yet; what they take back stays what they took back."""
        with self._open_to_append() as handle:
            here = {replace(word, number=-1): word.number for word in self.words}
            numbers: dict[int | None, int | None] = {None: None}
            new: list[Word] = []
            for word in other.words:
                moved = replace(word, undo=numbers.get(word.undo), number=-1)
                if moved not in here:
                    here[moved] = self._lines + len(new)
                    new.append(moved)
                numbers[word.number] = here[moved]
            if new:
                self._write(handle, new)

    def standing(self) -> list[Word]:
        """The labels that nobody has taken back, in their order."""
        return [word for word in self._in_force() if word.undo is None]

    def resolve(self, episode: Episode) -> np.ndarray:
        """int8[T+1]: 1 success, 0 failure, -1 unknown. The recorded truth first, then each word in its order."""
        labels = recorded(episode)
        if self._by_episode is None:
            self._by_episode = {}
            for word in self.standing():
                self._by_episode.setdefault(word.episode, []).append(word)
        for word in self._by_episode.get(episode.meta.id, ()):
            start, stop = self._range(word, episode)
            labels[start:stop] = UNKNOWN if word.value is None else int(word.value)
        return labels

    def refresh(self) -> None:
        """Look for words that others have appended."""
        try:
            handle = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return
        except OSError as error:
            raise EpisodeError(f"cannot read {self.path} ({error.strerror})") from error
        try:
            with contextlib.suppress(OSError):  # without locks, a line that is being written counts as cut off
                fcntl.flock(handle, fcntl.LOCK_SH)
            if self._catch_up(handle):
                _log.warning("%s: the last line is cut off and ignored; the next label puts that right", self.path)
        except OSError as error:
            raise EpisodeError(f"cannot read {self.path} ({error.strerror})") from error
        finally:
            os.close(handle)

    def _in_force(self) -> list[Word]:
        undone: set[int] = set()
        for word in reversed(self.words):  # an undo comes after what it takes back, another undo included
            if word.undo is not None and word.number not in undone:
                undone.add(word.undo)
        return [word for word in self.words if word.number not in undone]

    def _range(self, word: Word, episode: Episode) -> tuple[int, int]:
        count, shift = episode.states_count, 0
        if word.source in LIVE and self.offset_seconds and word.frames is not None:
            if not episode.meta.fps:
                raise EpisodeError(
                    f"episode {episode.meta.id} has no fps, so labels cannot be moved by {self.offset_seconds} s: "
                    "set offset_seconds to 0"
                )
            shift = round(self.offset_seconds * episode.meta.fps)
        if word.frames is None:
            return 0, count
        start, stop = (word.frames, word.frames + 1) if isinstance(word.frames, int) else word.frames
        if start >= count or (stop is not None and stop > count):
            raise EpisodeError(
                f"{self.path}: word {word.number} is about frames {word.frames} of episode {word.episode}, which has "
                f"{count}: take it back with undo({word.number})"
            )
        if isinstance(word.frames, int):
            return max(0, start - shift), max(0, start - shift) + 1
        return max(0, start - shift), count if stop is None else max(0, stop - shift)

    @contextlib.contextmanager
    def _open_to_append(self) -> Iterator[int]:
        """The file, locked, without a torn end, and read up to there."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            raise EpisodeError(f"cannot write {self.path} ({error.strerror})") from error
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            torn = self._catch_up(handle)
            if torn:
                self._heal(handle, torn)
            yield handle
        finally:
            os.close(handle)

    def _write(self, handle: int, words: Iterable[Word]) -> list[int]:
        lines = "".join(word.to_json() + "\n" for word in words).encode()
        before, first = os.fstat(handle).st_size, self._lines
        try:
            if os.write(handle, lines) != len(lines):
                raise OSError(None, "the disk is full")
            os.fsync(handle)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(handle, before)
            raise EpisodeError(f"cannot write {self.path} ({error.strerror})") from error
        if not before:
            files.flush(self.path.parent)
        self._catch_up(handle)
        return list(range(first, self._lines))

    def _heal(self, handle: int, torn: bytes) -> None:
        """Remove a torn last line; one that only lacks its end, as editors leave it, gets that."""
        try:
            Word.from_json(torn)
            os.write(handle, b"\n")
        except (ChecksumError, ValueError):
            os.ftruncate(handle, self._end)
        self._catch_up(handle)

    def _catch_up(self, handle: int) -> bytes:
        """Read the lines since the last time; returns what stands behind the last whole one."""
        size = os.fstat(handle).st_size
        if size < self._end:  # another file than before: read it from its start
            self.words, self.ignored, self._end, self._lines = [], {}, 0, 0
        data = b""
        while block := os.pread(handle, size - self._end - len(data), self._end + len(data)):
            data += block
        whole, end, torn = data.rpartition(b"\n")
        for line in whole.split(b"\n") if end else ():
            try:
                self.words.append(Word.from_json(line, self._lines))
            except ChecksumError as error:
                self.ignored[self._lines] = (
                    f"line {self._lines} {error} and is ignored: label its frames again; if you edited it on purpose, "
                    f"remove its {KEY}"
                )
            except ValueError as error:
                self.ignored[self._lines] = f"line {self._lines} is not a label and ignored: {error}"
            if self._lines in self.ignored:
                _log.warning("%s: %s", self.path, self.ignored[self._lines])
            self._lines += 1
        self._by_episode = None
        self._end += len(whole) + len(end)
        return torn


_log = logging.getLogger(__name__)


def _plain(frames: Frames) -> Frames:
    """The same as Python's own numbers; what is none is left to `check`."""
    if isinstance(frames, tuple):
        return tuple(int(end) if isinstance(end, np.integer) else end for end in frames)  # type: ignore[return-value]
    return int(frames) if isinstance(frames, np.integer) else frames


def held_frames(episode: Episode) -> np.ndarray:
    """bool[T+1]: states that an arm held in; their pictures may be old."""
    held = episode.signals.get(HELD)
    known = held is not None and held.dtype == bool and held.shape == (episode.states_count,)
    return held if held is not None and known else np.zeros(episode.states_count, bool)


def recorded(episode: Episode) -> np.ndarray:
    """int8[T+1] of what was recorded: 1 success, 0 failure, -1 unknown, as it is of states that an arm held in.

    There no success is paid, but the picture may be the old one of a success: nobody knows what it shows.
    """
    if episode.success is None:
        return np.full(episode.states_count, UNKNOWN, np.int8)
    return np.where(held_frames(episode), UNKNOWN, episode.success).astype(np.int8)


def _are_frames(frames: Any) -> bool:
    if frames is None:
        return True
    if isinstance(frames, tuple):
        if len(frames) != 2 or type(frames[0]) is not int or frames[0] < 0:
            return False
        return frames[1] is None or (type(frames[1]) is int and frames[1] > frames[0])
    return type(frames) is int and frames >= 0


def user() -> str:
    """Who is logged in, for the words of a person."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without users
        return ""
