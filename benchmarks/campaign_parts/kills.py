"""`kill -9` at random times for all that writes: what was acknowledged is there, and runs go on to the same end."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

from campaign_parts.material import Material
from campaign_parts.processes import Child
from campaign_parts.tally import Tally
from campaign_parts.writers import Writer, writers

IN_A_ROW = 3
"""Kills of one run before it may go on to its end."""


def run(seed: int, count: int, folder: Path, seconds: float, names: list[str] | None = None) -> list[Tally]:
    """One row per writer; `count` kills in all, shared equally. seconds: after which no further kill is tried."""
    chosen = [each for each in writers(Material(folder / "material")) if names is None or each.name in names]
    end = time.monotonic() + seconds
    rows = []
    for number, writer in enumerate(chosen):
        share = (end - time.monotonic()) / (len(chosen) - number)
        times = count // len(chosen) + (number < count % len(chosen))
        rows.append(_attack(writer, random.Random(f"{seed} {writer.name}"), times, folder / writer.name, share))
    return rows


def _attack(writer: Writer, choose: random.Random, times: int, folder: Path, seconds: float) -> Tally:
    tally, end = Tally(f"kills: {writer.name}"), time.monotonic() + seconds
    folder.mkdir(parents=True)
    lasts, expected = writer.seconds, ""
    if writer.digest is not None:
        child = Child(lambda: writer.work(folder / "reference"), folder / "reference.log")
        if child.wait(max(60.0, seconds)) != 0:
            child.kill()
            tally.defect("wrong", f"{writer.name} does not work without kills: {child.lines()[-1:]}")
            return tally
        lasts, expected = time.monotonic() - child.began, writer.digest(folder / "reference")
        tally.figures["seconds without kills"] = lasts
    place, in_a_row, number = folder / "run", 0, 0
    while tally.tried < times and time.monotonic() < end:
        number += 1
        child = Child(lambda: writer.work(place), folder / f"{number}.log")
        while (
            writer.ready and child.poll() is None and not any(line.startswith(writer.ready) for line in child.lines())
        ):
            time.sleep(0.01)
        finished = child.wait(choose.uniform(0.05, lasts)) is not None
        killed = time.monotonic()
        child.kill()
        if finished:
            _judge_end(writer, child, tally)
            in_a_row = IN_A_ROW
        else:
            with tally.trial(writer.name):
                writer.check(place, child.lines(), killed, tally)
            in_a_row += 1
        if writer.digest is not None and in_a_row >= IN_A_ROW:
            _finish(writer, place, folder / f"{number}-end.log", expected, lasts, tally)
            in_a_row = 0
    if writer.digest is not None and in_a_row:
        _finish(writer, place, folder / "end.log", expected, lasts, tally)
    return tally


def _judge_end(writer: Writer, child: Child, tally: Tally) -> None:
    """A run that ended by itself must have ended well."""
    if child.traceback is not None:
        tally.defect("tracebacks", f"{writer.name} after a kill: {child.traceback}")
    elif child.code != 0:
        tally.defect("wrong", f"{writer.name} does not go on after a kill: {' '.join(child.lines()[-1:])}")


def _finish(writer: Writer, place: Path, log: Path, expected: str, lasts: float, tally: Tally) -> None:
    """Let the run go on to its end, compare, and begin another."""
    assert writer.digest is not None
    child = Child(lambda: writer.work(place), log)
    if child.wait(60 + 10 * lasts) is None:
        child.kill()
        tally.defect("hangs", f"{writer.name} does not end after a kill")
    else:
        _judge_end(writer, child, tally)
        if child.code == 0:
            same = writer.digest(place) == expected
            tally.figures["results compared"] = tally.figures.get("results compared", 0) + 1
            tally.expect(same, f"{writer.name}: the result differs from a run without kills")
    for path in place.parent.glob("run*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
