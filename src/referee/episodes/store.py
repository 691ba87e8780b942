"""A folder of episodes that several processes may fill at once, and that survives being killed."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from referee import files
from referee.episodes.episode import Episode, EpisodeError
from referee.episodes.formats import native

EPISODES, MANIFEST, LABELS, JOURNALS = "episodes", "manifest.jsonl", "labels.jsonl", "journals"
STALE_SECONDS = 600
"""A temporary file that old belongs to nobody any more."""


@dataclass(frozen=True)
class Row:
    """What the manifest says about an episode: enough to list, choose and split without opening it."""

    id: str
    steps: int
    success_once: bool | None
    success_at_end: bool | None
    bytes: int
    task: str
    source: str
    cameras: tuple[str, ...]
    created: str

    def to_json(self) -> str:
        """One line."""
        return json.dumps({**vars(self), "cameras": list(self.cameras)}, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> Row:
        """The inverse; ValueError, TypeError or KeyError if it is none."""
        values: dict[str, Any] = json.loads(line)
        return cls(**{**values, "cameras": tuple(values["cameras"])})

    @classmethod
    def of(cls, episode: Episode, size: int) -> Row:
        """The row of an episode whose file has `size` bytes."""
        meta = episode.meta
        return cls(meta.id, len(episode), episode.success_once, episode.success_at_end, size, meta.task, meta.source,
                   meta.cameras, meta.created)  # fmt: skip


class EpisodeStore:
    """Episodes as files `episodes/<id>.safetensors`, and a manifest that can always be rebuilt from them.

    An episode is written under a temporary name, flushed to disk and only then named: `append` returns when it can no
    longer be lost. Opening a store repairs its manifest.
    """

    def __init__(self, root: Path | str, *, create: bool = True) -> None:
        self.root = Path(root)
        self._folder = self.root / EPISODES
        self._manifest = self.root / MANIFEST
        if not self._folder.is_dir():
            if not create:
                raise EpisodeError(f"{self.root} is not an episode store: it has no folder {EPISODES}/")
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise EpisodeError(f"cannot make an episode store in {self.root} ({error.strerror})") from error
        self.rows: dict[str, Row] = {}
        """The manifest as it was when last looked at, by id, oldest first."""
        self.broken: dict[str, str] = {}
        """Files that cannot be read, and why; they are left where they are."""
        self.refresh()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Episode]:
        return (self.read(id) for id in list(self.rows))

    def path(self, id: str) -> Path:
        """The file of an episode."""
        return self._folder / f"{id}{native.SUFFIX}"

    def append(self, episode: Episode) -> str:
        """Keep an episode; returns its id once it is safe on disk. An id that is taken is an error."""
        return self.append_many([episode])[0]

    def append_many(self, episodes: Sequence[Episode]) -> list[str]:
        """The same for several at once, which costs the disk less; returns when all of them are safe."""
        now = datetime.now(UTC)
        whole = [self._named(episode, now + timedelta(microseconds=i)) for i, episode in enumerate(episodes)]
        goals = [f"{self._folder}/{episode.meta.id}{native.SUFFIX}" for episode in whole]
        temporaries = [f"{self._folder}/.{episode.meta.id}.{os.getpid()}" for episode in whole]
        left = set(temporaries)
        try:
            sizes = _write_all(temporaries, whole)
            for temporary, goal, episode in zip(temporaries, goals, episodes, strict=True):
                if episode.meta.id and os.path.exists(goal):  # noqa: PTH110 - an id of our own is new
                    raise EpisodeError(f"{goal} is there already: an id is given once")
                os.rename(temporary, goal)  # noqa: PTH104 - half of the calls of Path.rename
                left.remove(temporary)
            files.flush(self._folder)
            rows = [Row.of(episode, size) for episode, size in zip(whole, sizes, strict=True)]
            with self._locked(), self._manifest.open("a") as manifest:
                manifest.write("".join(row.to_json() + "\n" for row in rows))
        except OSError as error:
            raise EpisodeError(f"cannot write to {self.root} ({error.strerror})") from error
        finally:
            for temporary in left:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)  # noqa: PTH108
        self.rows.update((row.id, row) for row in rows)
        return [row.id for row in rows]

    @staticmethod
    def _named(episode: Episode, now: datetime) -> Episode:
        """The episode with an id and a date, if it is sound."""
        id = episode.meta.id or new_id(now)
        if "/" in id or id.startswith("."):
            raise EpisodeError(f"{id!r} cannot be the id of an episode")
        created = episode.meta.created or now.isoformat(timespec="milliseconds")
        return replace(episode, meta=replace(episode.meta, id=id, created=created)).validate()

    def read(self, id: str) -> Episode:
        """An episode, memory-mapped."""
        if not self.path(id).exists():
            raise EpisodeError(f"{self.root} holds no episode {id}")
        return native.read(self.path(id))

    def refresh(self) -> None:
        """Look again at what is there, and put the manifest right where it differs from the files."""
        with self._locked():
            known, sound = self._read_manifest()
            sizes = {path.stem: path.stat().st_size for path in self._folder.glob(f"*{native.SUFFIX}")
                     if not path.name.startswith(".")}  # fmt: skip
            rows = {id: row for id, row in known.items() if sizes.get(id) == row.bytes}
            sound = sound and len(rows) == len(known)
            self.broken = {}
            for id, size in sizes.items():
                if id not in rows:
                    try:
                        rows[id] = replace(Row.of(native.read(self.path(id)), size), id=id)
                        sound = False
                    except EpisodeError as error:
                        self.broken[id] = str(error)
            self.rows = {id: rows[id] for id in sorted(rows)}
            if not sound:
                files.write_text(self._manifest, "".join(row.to_json() + "\n" for row in self.rows.values()))
            self._sweep()

    def check(self) -> dict[str, str]:
        """Read every byte; returns what is wrong, by id."""
        self.refresh()
        problems = dict(self.broken)
        for id in self.rows:
            try:
                native.verify(self.path(id))
            except EpisodeError as error:
                problems[id] = str(error)
        return problems

    def _read_manifest(self) -> tuple[dict[str, Row], bool]:
        rows: dict[str, Row] = {}
        sound = True
        if self._manifest.exists():
            for line in self._manifest.read_text(errors="replace").splitlines():
                try:
                    row = Row.from_json(line)
                    sound = sound and row.id not in rows  # one repaired it while another appended
                    rows[row.id] = row
                except (ValueError, TypeError, KeyError):
                    sound = False  # the last line of a killed process
        return rows, sound

    def _sweep(self) -> None:
        """Remove what killed processes left half-written."""
        for path in self._folder.glob(".*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > STALE_SECONDS:
                    path.unlink()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            handle = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise EpisodeError(f"cannot write to {self.root} ({error.strerror})") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _write_all(paths: Sequence[str], episodes: Sequence[Episode]) -> list[int]:
    """Write new files and wait until they are on disk; returns their sizes."""
    handles: list[io.FileIO] = []
    try:
        sizes = []
        for path, episode in zip(paths, episodes, strict=True):
            handles.append(io.FileIO(path, "xb"))
            sizes.append(native.write_to(handles[-1], episode))
        files.flush_all([handle.fileno() for handle in handles])
        return sizes
    finally:
        for handle in handles:
            handle.close()


def new_id(now: datetime | None = None) -> str:
    """Sorts by time, and is unique across processes."""
    return f"{now or datetime.now(UTC):%Y%m%d-%H%M%S-%f}-{secrets.token_hex(4)}"
