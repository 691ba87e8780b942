"""Damaged files of every kind that Referee reads: each must be read, or be refused in one line.

    python benchmarks/campaign_files.py --seed 0 --count 10000

Files are damaged by `campaign_mutate` and read by `campaign_samples`, many in one process, which is ended when a file
takes too long; what a file did is one of

    ok           it was read
    refused      one line says what is wrong with it
    traceback    any other error
    hang         it took longer than SECONDS
    memory       the process grew by more than MEMORY
    crash        the process ended
    executed     something in it ran
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from campaign_samples import Kind

SECONDS, MEMORY, BATCH = 30.0, 1 << 30, 400
START_SECONDS = 180.0
EXTRA = "REFEREE_CAMPAIGN_KINDS"
"""A Python file with further kinds, for the test of this campaign itself."""
OUTCOMES = ("ok", "refused", "executed", "traceback", "hang", "memory", "crash")
BAD = OUTCOMES[2:]


@dataclass(frozen=True)
class Result:
    """What one damaged file did."""

    kind: str
    seed: int
    outcome: str
    detail: str = ""
    """The line that refused it, or the last lines of a traceback."""


def run(seed: int, count: int, folder: Path, kinds: Sequence[str] | None = None) -> list[Result]:
    """Read `count` damaged files, of all kinds in turn; samples and damaged files go to `folder`."""
    names = list(kinds or _kinds())
    results: list[Result] = []
    for index, name in enumerate(names):
        share = count // len(names) + (index < count % len(names))
        first = seed * 1_000_000
        done = first
        while done < first + share:
            found = _batch(name, done, min(first + share, done + BATCH), folder / f"{index:02}")
            results += found
            done += len(found)
    return results


def _batch(name: str, first: int, last: int, folder: Path) -> list[Result]:
    """Results of some seeds, in order, up to one that ended the process."""
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "report.jsonl"
    report.write_text("")
    worker = [sys.executable, __file__, "--worker", name, str(first), str(last), str(folder)]
    with (folder / "stderr.txt").open("w") as errors:
        process = subprocess.Popen(worker, stdout=subprocess.DEVNULL, stderr=errors, stdin=subprocess.DEVNULL)
        seen, since, hung = 0, time.monotonic(), False
        while process.poll() is None:
            time.sleep(0.05)
            lines = report.read_bytes().count(b"\n")
            if lines != seen:
                seen, since = lines, time.monotonic()
            if time.monotonic() - since > (SECONDS if seen else START_SECONDS):
                hung = True
                process.kill()
                process.wait()
    results = results_of(report)
    if len(results) < last - first and (hung or process.returncode != 0):
        if not report.read_text().startswith("ready"):
            raise SystemExit(f"{name}: the process does not start: {(folder / 'stderr.txt').read_text()[-2000:]}")
        detail = (folder / "stderr.txt").read_text()[-500:] or f"code {process.returncode}"
        results.append(Result(name, first + len(results), "hang" if hung else "crash", detail))
    return results


def results_of(report: Path) -> list[Result]:
    """What a worker has written down."""
    return [Result(**json.loads(line)) for line in report.read_text().splitlines() if line != "ready"]


def _kinds() -> dict[str, Kind]:
    from campaign_samples import KINDS

    if EXTRA in os.environ:
        runpy.run_path(os.environ[EXTRA])
    return KINDS


def work(name: str, first: int, last: int, folder: Path) -> None:
    """Damage and read; a line after each."""
    from campaign_mutate import mutated
    from campaign_samples import targets

    kind, sample, trial = _kinds()[name], folder / "sample", folder / "trial"
    if not sample.exists():
        sample.mkdir()
        kind.make(sample)
        _fresh(sample, trial)
        kind.read(trial)  # undamaged, it is read
    canary = folder / "CANARY"
    with (folder / "report.jsonl").open("a", buffering=1) as report:
        report.write("ready\n")
        for seed in range(first, last):
            chance = random.Random(f"{name}:{seed}")
            _fresh(sample, trial)
            os.chdir(trial)
            path = chance.choice(targets(kind, trial))
            path.write_bytes(mutated(path.read_bytes(), chance, kind=kind.language, canary=canary))
            before = _peak_memory(reset=True)
            outcome, detail = _read(kind.read, trial)
            grown = _peak_memory() - before
            if grown > MEMORY:
                outcome, detail = "memory", f"{grown >> 20} MiB"
            if canary.exists() or (trial / "x.txt").exists():
                outcome = "executed"
                canary.unlink(missing_ok=True)
            report.write(json.dumps(asdict(Result(name, seed, outcome, detail))) + "\n")


def _peak_memory(*, reset: bool = False) -> int:
    """Bytes that this process has held at most since the last reset.

    `getrusage` will not do: its peak is also that of the process which started this one.
    """
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def _read(read: Callable[[Path], None], trial: Path) -> tuple[str, str]:
    from referee.errors import RefereeError

    try:
        read(trial)
    except RefereeError as error:
        text = str(error)
        return ("refused", text[:300]) if text and "\n" not in text else ("traceback", text[:2000])
    except Exception:
        return "traceback", traceback.format_exc()[-1500:]
    return "ok", ""


def _fresh(sample: Path, trial: Path) -> None:
    os.chdir(sample.parent)
    shutil.rmtree(trial, ignore_errors=True)
    shutil.copytree(sample, trial)


def table(results: Sequence[Result]) -> str:
    """A row per kind: how many were tried, and how often each went wrong."""
    titles = ("kind", "tried", "ok", "refused", "executed", "traceback", "hang", "memory", "crash")
    lines = [f"{titles[0]:22}" + "".join(f"{title:>10}" for title in titles[1:])]
    kinds = list(dict.fromkeys(each.kind for each in results))
    for name in [*kinds, ""]:
        counts = Counter(each.outcome for each in results if name in ("", each.kind))
        numbers = [sum(counts.values()), *(counts[outcome] for outcome in OUTCOMES)]
        lines.append(f"{name or 'all':22}" + "".join(f"{number:>10}" for number in numbers))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--kinds", nargs="*", help="only these")
    parser.add_argument("--details", action="store_true", help="print what went wrong with each")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        logging.disable(logging.CRITICAL)
        warnings.simplefilter("ignore")
        name, first, last, folder = arguments.worker
        work(name, int(first), int(last), Path(folder))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        results = run(arguments.seed, arguments.count, Path(folder), arguments.kinds)
    print(table(results))
    bad = [each for each in results if each.outcome in BAD]
    for each in bad if arguments.details else ():
        print(f"\n{each.kind}, seed {each.seed}: {each.outcome}\n{each.detail}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
