"""The folder of a run: its name, its configuration, and the lock that keeps a second run out of it."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

from referee.config import Loaded, to_yaml
from referee.episodes.store import EPISODES
from referee.errors import RefereeError
from referee.files import write_text

LOCK = ".lock"
"""Says which process writes into a folder. The lock itself is the kernel's: a killed process lets go of it."""
CHECKPOINTS, RESULT = "checkpoints", "result.json"
"""What a run leaves in its folder when it comes to something."""
P = ParamSpec("P")
R = TypeVar("R")
_locks: dict[Path, tuple[int, list[Path]]] = {}
"""The folders that this process has locked: the open file of each, and what was made for it, innermost first."""


def name_run(loaded: Loaded) -> Path:
    """`logs/<timestamp>-<experiment or preset>` unless the config names one; the folder is locked for this process.

    A second run within the same second is called `…-2`.
    """
    runner, logger = loaded.config.runner, loaded.config.runner.logger
    if logger.log_path:
        folder = Path(logger.log_path)
        lock(folder)  # first: results of a run that goes on are no earlier ones
        if getattr(runner, "resume_dir", None) is None:  # not every recipe can be resumed
            refuse_used(folder, fix="set runner.logger.log_path (--out) to a new folder")
        return folder
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{Path(logger.experiment_name or loaded.preset).stem}"
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(folder for each in names if lock(folder := Path(logger.output_dir) / each, new=True))


def refuse_used(folder: Path, *, fix: str) -> None:
    """Refuse to write a run over the results of another one, or into episodes; one that left none is begun again."""
    saved = any(not path.name.startswith(".") for path in (folder / CHECKPOINTS).glob("*"))
    if saved or (folder / RESULT).exists():
        resumed = f", go on with it (runner.resume_dir={folder})" if saved else ""
        raise RefereeError(
            f"{folder} holds the results of a run already: {fix}{resumed}, or remove it (rm -r {folder})"
        )
    if (folder / EPISODES).is_dir():
        raise RefereeError(f"{folder} holds recorded episodes: {fix}")


def open_run(loaded: Loaded, folder: Path | None = None) -> Path:
    """Lock the run's folder, if it is not yet, and write the config into it."""
    folder = folder or name_run(loaded)
    lock(folder)
    with _writing(folder):
        write_text(folder / "config.yaml", to_yaml(loaded))
    return folder


def locks_folder(recipe: Callable[P, R]) -> Callable[P, R]:
    """A recipe that lets go of the folders it has locked when it ends; those with nothing in them are removed."""

    @functools.wraps(recipe)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        before = set(_locks)
        try:
            return recipe(*args, **kwargs)
        finally:
            for folder in set(_locks) - before:
                unlock(folder)

    return run


def lock(folder: Path, *, fix: str = "set runner.logger.log_path to another folder", new: bool = False) -> bool:
    """Keep other processes out of a folder until `unlock`, or until this process ends; it is made if need be.

    fix: what to do where another process has it, besides ending that.
    new: only if it is not there yet; returns whether it was locked.
    """
    place = folder.resolve()
    if place in _locks:
        return not new
    made = [each for each in (place, *place.parents) if not each.exists()]
    with _writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir()
        except FileExistsError:
            if new:
                return False
        handle = _take(folder, fix)
        _locks[place] = handle, made
        os.ftruncate(handle, 0)
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "started": time.strftime("%Y-%m-%d %H:%M:%S")}
        os.write(handle, json.dumps(owner).encode())
    return True


@contextlib.contextmanager
def locked(folder: Path, *, fix: str) -> Iterator[None]:
    """Hold the lock of a folder while the block runs."""
    lock(folder, fix=fix)
    try:
        yield
    finally:
        unlock(folder)


def unlock(folder: Path) -> None:
    """Let others write there."""
    place = folder.resolve()
    handle, made = _locks.pop(place)
    with contextlib.suppress(OSError):  # gone, read-only, or not empty
        if os.fstat(handle).st_nlink:
            (place / LOCK).unlink()
        for each in made:
            each.rmdir()
    os.close(handle)


def _take(folder: Path, fix: str) -> int:
    while True:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_nlink:
                return handle
            os.close(handle)  # whoever had it has removed it since
        except BlockingIOError:
            owner = os.pread(handle, 4096, 0)
            os.close(handle)
            raise RefereeError(f"{folder} is in use by {_describe(owner)}: end that run, or {fix}") from None
        except BaseException:
            os.close(handle)
            raise


def _describe(owner: bytes) -> str:
    try:
        values = json.loads(owner)
        return f"process {int(values['pid'])} on {values['host']}, started {values['started']}"
    except (ValueError, KeyError, TypeError):  # about to be written
        return "another process"


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RefereeError(
            f"cannot write to {folder} ({error.strerror}): set runner.logger.log_path to a folder that you can write"
        ) from error


def _forget() -> None:
    """In a forked child: the lock is its parent's alone, and ends with it."""
    for handle, _ in _locks.values():
        os.close(handle)
    _locks.clear()


os.register_at_fork(after_in_child=_forget)
