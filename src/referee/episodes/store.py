"""A folder of episodes that several processes may fill at once, and that survives being killed."""

from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from referee import files
from referee.episodes import manifest
from referee.episodes.episode import Episode, EpisodeError
from referee.episodes.formats import native
from referee.episodes.manifest import Row

__all__ = ["EPISODES", "JOURNALS", "LABELS", "MANIFEST", "EpisodeStore", "Row", "adding_to", "new_id"]

EPISODES, MANIFEST, LABELS, JOURNALS = "episodes", "manifest.jsonl", "labels.jsonl", "journals"
STALE_SECONDS = 600
"""Before that, nobody asks whether the writer of a temporary file is still there."""
SHOWN = 3
"""Episodes in a notebook."""
_log = logging.getLogger(__name__)


class EpisodeStore:
    """Episodes as files `episodes/<id>.safetensors`, and a manifest that can always be rebuilt from them.

    An episode is written under a temporary name, flushed to disk and only then named: `append` returns when it can no
    longer be lost. Opening a store repairs its manifest. Reading needs no lock and writes nothing that it need not, so
    that a store on a read-only file system can be read.
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
        self.without_checksum = 0
        """Files of older versions, in which `check` cannot notice every change; counted there."""
        self._verified: set[str] = set()
        self._reported: set[str] = set()
        self.refresh()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Episode]:
        """All episodes that can be read, each checked byte by byte the first time."""
        if line := self.left_out():
            _log.warning("%s", line)
        return (self.read(id, verify=True) for id in list(self.rows))

    def __repr__(self) -> str:
        return f"EpisodeStore({str(self.root)!r}, {len(self)} episodes)"

    def _repr_html_(self) -> str:
        from referee import notebook  # brings Pillow

        rows = list(self.rows.values())
        labelled = [row for row in rows if row.success_once is not None]
        facts = {
            "episodes": len(rows),
            "steps": sum(row.steps for row in rows),
            "with success": f"{sum(bool(row.success_once) for row in labelled)} of {len(labelled)} labelled",
            "broken files": len(self.broken) or None,
        }
        strips = []
        for row in rows[:: max(1, -(-len(rows) // SHOWN))]:
            try:
                episode = self.read(row.id)
            except EpisodeError as error:
                strips.append(notebook.panel(f"Episode {row.id}", {"broken": error}))
                continue
            views = list(episode.views().values())[:1]
            strips += [notebook.picture(notebook.film_strip(views, episode.success), row.id)] * bool(views)
        return notebook.panel(f"Episodes in {self.root}", facts, *strips)

    def left_out(self) -> str:
        """One line about files that cannot be read, and that a pass over the store leaves out; empty where it was told.

        Whoever reads all episodes tells it; a loop over the store logs it unless that was done.
        """
        new = self.broken.keys() - self._reported
        self._reported |= new
        if not new:
            return ""
        reason, more = next(reason for id, reason in self.broken.items() if id in new), len(new) - 1
        return (
            f"{len(new)} of {len(self.broken) + len(self)} episode files cannot be read and are left out: {reason}"
            f"{f' (and {more} more)' if more else ''}: bring them back from a copy, or move them away "
            f"(`referee episodes check {self.root}` names each)"
        )

    def path(self, id: str) -> Path:
        """The file of an episode."""
        return self._folder / f"{id}{native.SUFFIX}"

    def append(self, episode: Episode) -> str:
        """Keep an episode; returns its id once it is safe on disk. An id that is taken is an error."""
        return self.append_many([episode])[0]

    def append_many(self, episodes: Sequence[Episode]) -> list[str]:
        """The same for several at once, which costs the disk less; returns when all of them are safe."""
        return self._write(episodes)

    def replace_by_longer(self, episode: Episode) -> str:
        """Put a recording in the place of its own beginning, which the store holds under the same id."""
        self._verified.discard(episode.meta.id)
        return self._write([episode], replacing=True)[0]

    def _write(self, episodes: Sequence[Episode], *, replacing: bool = False) -> list[str]:
        now = datetime.now(UTC)
        whole = [self._named(episode, now + timedelta(microseconds=i)) for i, episode in enumerate(episodes)]
        goals = [f"{self._folder}/{episode.meta.id}{native.SUFFIX}" for episode in whole]
        temporaries = [f"{self._folder}/.{episode.meta.id}.{os.getpid()}" for episode in whole]
        left = set(temporaries)
        try:
            with _written(temporaries, whole) as sizes:
                for temporary, goal, episode in zip(temporaries, goals, episodes, strict=True):
                    taken = episode.meta.id and os.path.exists(goal)  # noqa: PTH110 - an id of our own is new
                    if taken and not replacing:
                        raise EpisodeError(f"{goal} is there already: an id is given once")
                    os.rename(temporary, goal)  # noqa: PTH104 - half of the calls of Path.rename
                    left.remove(temporary)
            files.flush(self._folder)
            rows = [Row.of(episode, size) for episode, size in zip(whole, sizes, strict=True)]
            with self._locked(), self._manifest.open("a") as lines:
                lines.write("".join(row.to_json() + "\n" for row in rows))
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

    def read(self, id: str, *, verify: bool = False) -> Episode:
        """An episode, memory-mapped; its header is checked.

        verify: read and check all of its bytes too, unless this object has done so before.
        """
        path = self.path(id)
        if not path.exists():
            raise EpisodeError(f"{self.root} holds no episode {id}")
        episode = native.read(path, verify=verify and id not in self._verified)
        if verify:
            self._verified.add(id)
        return episode

    def refresh(self) -> None:
        """Look again at what is there, and put the manifest right where it differs from the files."""
        built: dict[str, tuple[int, Row]] = {}
        sound, changed = self._look(built)
        if not sound:
            # Where nothing can be written, what the files say is enough for a reader.
            with contextlib.suppress(OSError), self._locked():
                sound, _ = self._look(built)
                if not sound:
                    files.write_text(self._manifest, "".join(row.to_json() + "\n" for row in self.rows.values()))
        if changed:
            _log.warning("%s: %d lines had changed since they were written (checksum) and were rebuilt from the files "
                         "of the episodes", self._manifest, changed)  # fmt: skip

    def _look(self, built: dict[str, tuple[int, Row]]) -> tuple[bool, int]:
        """Take in manifest and files; returns whether they fit, and how many lines of the manifest had changed.

        built: rows that were made from files by an earlier look, with the sizes of these.
        """
        try:
            listed = manifest.read(self._manifest)
            sizes = self._sizes()
        except OSError as error:
            raise EpisodeError(f"cannot read {error.filename or self.root} ({error.strerror})") from error
        rows = {id: row for id, row in listed.rows.items() if sizes.get(id) == row.bytes}
        sound = listed.sound and len(rows) == len(listed.rows)
        self.broken = {}
        for id, size in sizes.items():
            if id in rows:
                continue
            try:
                if built.get(id, (None,))[0] != size:
                    built[id] = size, replace(Row.of(native.read(self.path(id)), size), id=id)
                rows[id] = built[id][1]
                sound = False
            except EpisodeError as error:
                self.broken[id] = str(error)
        self.rows = {id: rows[id] for id in sorted(rows)}
        return sound, listed.changed

    def _sizes(self) -> dict[str, int]:
        """Bytes of the files of episodes, by id; what killed processes left half-written is removed on the way."""
        sizes = {}
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    with contextlib.suppress(OSError):
                        _remove_abandoned(entry.path)
                elif entry.name.endswith(native.SUFFIX):
                    with contextlib.suppress(FileNotFoundError):
                        sizes[entry.name.removesuffix(native.SUFFIX)] = entry.stat().st_size
        return sizes

    def last_numbers(self, rank: int) -> dict[int, int]:
        """The highest number of an episode of the recorder `rank`, by environment."""
        last: dict[int, int] = {}
        for id in self.rows:
            with contextlib.suppress(EpisodeError):
                meta = native.read_header(self.path(id))[1]
                if meta.rank == rank:
                    last[meta.env] = max(meta.episode, last.get(meta.env, -1))
        return last

    def check(self) -> dict[str, str]:
        """Read every byte; returns what is wrong, by id."""
        self.refresh()
        problems = dict(self.broken)
        self.without_checksum = 0
        for id in self.rows:
            try:
                self.without_checksum += not native.verify(self.path(id))
            except EpisodeError as error:
                problems[id] = str(error)
        return problems

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        handle = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with contextlib.suppress(OSError):  # without locks, a manifest that two write at once is rebuilt later
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def adding_to(root: Path | str) -> Callable[[], EpisodeStore]:
    """A function that opens a store to record into; it makes the folder when it is called.

    Episodes that are there already are counted aloud; a folder that holds something else is refused.
    """
    root = Path(root)
    refuse_foreign(root)
    if count := sum(path.suffix == native.SUFFIX for path in (root / EPISODES).glob("*")):
        _log.warning("%s holds %d episodes already: those recorded now are added to them", root, count)
    return lambda: EpisodeStore(root)


def refuse_foreign(root: Path) -> None:
    """Refuse a folder that holds something else than episodes."""
    if (root / EPISODES).is_dir() or not root.exists():
        return
    if not root.is_dir() or any(not path.name.startswith(".") for path in root.iterdir()):
        raise EpisodeError(f"{root} holds something else than episodes: name a new folder, or a store to add to")


@contextlib.contextmanager
def _written(paths: Sequence[str], episodes: Sequence[Episode]) -> Iterator[list[int]]:
    """New files that are on disk, with their sizes; they are locked within, so that nobody takes them for abandoned."""
    handles: list[io.FileIO] = []
    try:
        sizes = []
        for path, episode in zip(paths, episodes, strict=True):
            handles.append(io.FileIO(path, "xb"))
            files.try_lock(handles[-1].fileno())
            sizes.append(native.write_to(handles[-1], episode))
        files.flush_all([handle.fileno() for handle in handles])
        yield sizes
    finally:
        for handle in handles:
            handle.close()


def _remove_abandoned(path: str) -> None:
    """Remove a temporary file, if nobody writes it any more."""
    if time.time() - os.stat(path).st_mtime > STALE_SECONDS:  # noqa: PTH116
        handle = os.open(path, os.O_RDONLY)
        try:
            if files.try_lock(handle):
                os.unlink(path)  # noqa: PTH108
        finally:
            os.close(handle)


def new_id(now: datetime | None = None) -> str:
    """Sorts by time, and is unique across processes."""
    return f"{now or datetime.now(UTC):%Y%m%d-%H%M%S-%f}-{secrets.token_hex(4)}"
