"""Clocks that jump and disks that fill up: nothing is taken for dead, nothing half-written, and runs go on."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from campaign_parts.material import Material
from campaign_parts.processes import Child
from campaign_parts.tally import Tally
from campaign_parts.writers import Writer, kept_labels, label, writers

DAY = 86_400.0
AMPLE = 256 << 20
"""Bytes of the small disk when it has room again."""


def run(seed: int, count: int, folder: Path, seconds: float, names: list[str] | None = None) -> list[Tally]:
    """Two rows; `count` trials of each. names: of the writers that get a full disk and a jumping clock."""
    choose, end = random.Random(seed), time.monotonic() + seconds
    ends = [each for each in writers(Material(folder / "material")) if each.digest is not None]
    chosen = [each for each in ends if names is None or each.name in names]
    clock, disk = Tally("clock steps"), Tally("full disk")
    _journals(choose, folder / "journals", clock)
    for number in range(count):
        if time.monotonic() > end:
            break
        writer = chosen[number % len(chosen)]
        reference = _reference(writer, folder / "whole" / writer.name, disk)
        if reference is not None:
            with clock.trial(f"{writer.name}, clock steps"):
                _jumps(writer, folder / "clock" / str(number), reference, choose, clock)
            with disk.trial(f"{writer.name}, full disk"):
                _fills(writer, folder / "disk" / str(number), reference, choose, disk)
    return [clock, disk]


# --- clocks ---


def _journals(choose: random.Random, folder: Path, tally: Tally) -> None:
    """A labelling run whose journal looks old or comes from the future, suspended while somebody checks the store."""
    for number, shift in enumerate((-DAY, DAY, -choose.uniform(40, 4000))):
        place = folder / str(number) / "run"
        place.parent.mkdir(parents=True)
        run = Child(lambda place=place: label(place), place.parent / "run.log")
        with tally.trial("a suspended labelling run"):
            _until(lambda run=run: sum(line.startswith("pressed") for line in run.lines()) > 15, 60)
            os.kill(run.pid, signal.SIGSTOP)
            for path in (place / "recording").rglob("*"):
                moment = path.stat().st_mtime + shift
                os.utime(path, (moment, moment))
            _check(place / "recording", place.parent / "check.log", tally)
            os.kill(run.pid, signal.SIGCONT)
            time.sleep(1.5)
            tally.expect(run.poll() is None, "a living run ended after somebody checked its store")
        lines, killed = run.lines(), time.monotonic()
        os.kill(run.pid, signal.SIGCONT) if run.poll() is None else None
        run.kill()
        with tally.trial("its labels after a kill"):
            for path in (place / "recording").rglob("*"):
                os.utime(path, (time.time() + shift, time.time() + shift))
            kept_labels(place, lines, killed, tally)


def _check(store: Path, log: Path, tally: Tally) -> None:
    from referee.cli import main

    child = Child(lambda: main(["episodes", "check", str(store)]), log)
    if child.wait(30) is None:
        child.kill()
        tally.defect("hangs", "episodes check beside a suspended run")
    elif child.traceback is not None:
        tally.defect("tracebacks", f"episodes check beside a suspended run: {child.traceback}")


def _jumps(writer: Writer, folder: Path, reference: str, choose: random.Random, tally: Tally) -> None:
    """The wall clock jumps by up to a day, back and forth, at every tenth look: the result is the same."""
    seed = choose.randrange(1 << 30)

    def jumping() -> int | None:
        random_steps, real, looks, offset = random.Random(seed), time.time, [0], [0.0]

        def now() -> float:
            looks[0] += 1
            if looks[0] % 10 == 0:
                offset[0] = random_steps.uniform(-DAY, DAY)
            return real() + offset[0]

        time.time = now
        return writer.work(folder / "run")

    folder.mkdir(parents=True)
    child = Child(jumping, folder / "log")
    if child.wait(240) is None:
        child.kill()
        tally.defect("hangs", f"{writer.name} while the clock jumps")
    elif child.traceback is not None:
        tally.defect("tracebacks", f"{writer.name} while the clock jumps: {child.traceback}")
    elif child.code:
        tally.defect("wrong", f"{writer.name} ends while the clock jumps: {' '.join(child.lines()[-1:])}")
    else:
        assert writer.digest is not None
        tally.expect(writer.digest(folder / "run") == reference, f"{writer.name}: another result as the clock jumps")


# --- disks ---


def _fills(writer: Writer, folder: Path, reference: str, choose: random.Random, tally: Tally) -> None:
    """The disk is full at some point; then there is room again."""
    assert writer.digest is not None
    size = sum(path.stat().st_size for path in _whole(folder, writer).rglob("*") if path.is_file())
    room = int(size * choose.uniform(0.05, 0.9))
    with _small_disk(folder, room, tally) as (place, limit, grow):
        full = Child(lambda: writer.work(place / "run"), folder / "full.log", file_bytes=limit)
        if full.wait(240) is None:
            full.kill()
            tally.defect("hangs", f"{writer.name} on a full disk")
        elif full.traceback is not None:
            tally.defect("tracebacks", f"{writer.name} on a full disk: {full.traceback}")
        elif full.code == 0:
            tally.expect(writer.digest(place / "run") == reference, f"{writer.name}: half a result on a full disk")
        else:
            said = [line for line in full.lines() if line.startswith("referee: ")]
            tally.expect(len(said) == 1, f"{writer.name} on a full disk says {full.lines()[-1:]}")
        grow()
        again = Child(lambda: writer.work(place / "run"), folder / "again.log")
        if again.wait(240) is None:
            again.kill()
            tally.defect("hangs", f"{writer.name} after a full disk")
        elif again.code:
            tally.defect("wrong", f"{writer.name} does not go on after a full disk: {' '.join(again.lines()[-1:])}")
        else:
            same = writer.digest(place / "run") == reference
            tally.expect(same, f"{writer.name}: another result after a full disk")


@contextmanager
def _small_disk(folder: Path, room: int, tally: Tally) -> Iterator[tuple[Path, int | None, Callable[[], object]]]:
    """A file system with so many bytes, where one may be mounted; else a limit on the size of files."""
    place = folder / "disk"
    place.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={max(room, 64 << 10)}", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        note = "no tmpfs may be mounted here: files were limited in size instead"
        if note not in tally.skipped:
            tally.skipped.append(note)
        yield place, max(room // 4, 4096), lambda: None
        return
    try:
        yield (
            place,
            None,
            lambda: subprocess.run(
                ["mount", "-o", f"remount,size={AMPLE}", str(place)], check=True, capture_output=True
            ),
        )
    finally:
        subprocess.run(["umount", str(place)], check=True, capture_output=True)


def _whole(folder: Path, writer: Writer) -> Path:
    return folder.parents[1] / "whole" / writer.name / "run"


def _reference(writer: Writer, folder: Path, tally: Tally) -> str | None:
    """The digest of a run with room and time, which is made once."""
    assert writer.digest is not None
    if not folder.exists():
        folder.mkdir(parents=True)
        child = Child(lambda: writer.work(folder / "run"), folder / "log")
        if child.wait(240) != 0:
            child.kill()
            tally.defect("wrong", f"{writer.name} does not work at all: {child.lines()[-1:]}")
            return None
    return writer.digest(folder / "run")


def _until(holds: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"not so after {seconds:.0f} s")
        time.sleep(0.02)
