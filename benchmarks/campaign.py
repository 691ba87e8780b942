"""Attacks Referee from all sides and prints what broke.

Nothing may be lost, hang, run foreign code or end in a traceback.

  files       mutated files for every reader
  kills       `kill -9` at random times for everything that writes, then it goes on
  server      slow headers, large bodies, bad tokens, hostile names, on loopback
  clock_disk  a wall clock that jumps, a journal that looks old, a full disk
  ray         workers, raylets and the driver killed; a node cut off for ten seconds
  twin        cameras, clocks, connection, SpaceMouse, reward and box of a simulated arm

The same seed gives the same attacks; moments of a kill depend on the machine, too. Everything happens in a folder of
its own, on this machine. Only processes that this command has started are ended, by their pids. `--minutes 3` is a
sample of all parts. Exit code 1 where there is a defect.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from referee import cpu

cpu.cap_if_needed()

from campaign_parts import clock_disk, kills, material, ray_kills, server, twin  # noqa: E402
from campaign_parts.processes import Child  # noqa: E402
from campaign_parts.tally import Tally, as_row, remarks, table  # noqa: E402

PARTS = ("files", "kills", "server", "clock_disk", "ray", "twin")
QUICK_KILLS = ["recording", "labelling", "conversion", "merge", "frames", "PPO"]
QUICK_KINDS = 3
"""Readers in a sample, drawn by the seed: each needs a process of its own."""
COLUMN_OF = {"executed": "executions", "traceback": "tracebacks", "hang": "hangs", "memory": "memory", "crash": "wrong"}
QUICK_DISK = ["conversion", "windows"]
SHARES = {"files": 0.2, "kills": 0.3, "server": 0.12, "clock_disk": 0.25, "twin": 0.05}
"""Of the time of a sample; Ray runs beside the others, on the other core."""
HOUR = 3600.0


def attacks(args: argparse.Namespace, folder: Path) -> dict[str, tuple[float, Callable[[], list[Tally]]]]:
    """For each part the seconds that it may take, and what it does."""
    seed, quick = args.seed, args.minutes is not None
    whole = 60 * args.minutes if quick else 0.0
    given = {name: share * whole if quick else 4 * HOUR for name, share in SHARES.items()}
    given["ray"] = 0.6 * whole if quick else HOUR
    trials = 2 if quick else 14
    return {
        "files": (given["files"], lambda: files(seed, args.files, folder / "files", QUICK_KINDS if quick else None)),
        "kills": (
            given["kills"],
            lambda: kills.run(seed, args.kills, folder, given["kills"] * 0.9, QUICK_KILLS if quick else None),
        ),
        "server": (given["server"], lambda: server.run(seed, min(given["server"] * 0.7, 90), folder)),
        "clock_disk": (
            given["clock_disk"],
            lambda: clock_disk.run(
                seed, trials, folder, given["clock_disk"] * 0.6, QUICK_DISK if quick else None
            ),
        ),
        "ray": (
            given["ray"],
            lambda: ray_kills.run(
                seed, 2 if quick else 12, folder, given["ray"], ("workers",) if quick else None
            ),
        ),
        "twin": (given["twin"], lambda: twin.run(seed, 28 if quick else 560, folder)),
    }  # fmt: skip


def files(seed: int, count: int, folder: Path, kinds: int | None) -> list[Tally]:
    """Mutated files for every reader, or for so many `kinds` of them; see `campaign_files`."""
    try:
        import campaign_files
        from campaign_samples import KINDS
    except ModuleNotFoundError as error:
        if error.name not in ("campaign_files", "campaign_samples"):
            raise
        return [Tally("files", skipped=["benchmarks/campaign_files.py is not there"])]
    names = list(KINDS) if kinds is None else random.Random(seed).sample(sorted(KINDS), kinds)
    tally = Tally("files")
    for result in campaign_files.run(seed, count, folder, names):
        tally.tried += 1
        if result.outcome in COLUMN_OF:
            detail = " ".join(result.detail.split())[-200:]
            tally.defect(COLUMN_OF[result.outcome], f"{result.kind}, seed {result.seed}: {detail}")
    return [tally]


def started(name: str, attack: Callable[[], list[Tally]], folder: Path) -> Child:
    """A part in a process of its own: what happens there does not touch the others."""

    def work() -> None:
        rows = [asdict(row) for row in attack()]
        (folder / f"{name}.json").write_text(json.dumps(rows))

    return Child(work, folder / f"{name}.log")


def ended(name: str, child: Child, folder: Path, seconds: float) -> list[Tally]:
    """Its rows; a row with one defect where it failed or did not end."""
    rows = folder / f"{name}.json"
    if child.wait(seconds) is None:
        child.kill()
        return [Tally(name, tried=1, hangs=1, notes=[f"hangs: the part did not end within {seconds:.0f} s"])]
    if not rows.exists():
        return [Tally(name, tried=1, tracebacks=1, notes=[f"tracebacks: {' '.join(child.lines()[-1:])}"])]
    return [as_row(row) for row in json.loads(rows.read_text())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, help="mutated files (default 10000; of a sample 150)")
    parser.add_argument("--kills", type=int, help="kills of writers (default 200; of a sample 12)")
    parser.add_argument("--minutes", type=float, help="a sample of all parts that ends within so many minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--folder", type=Path, help="keep everything here (default: a temporary folder)")
    args = parser.parse_args()
    quick = args.minutes is not None
    args.files = args.files if args.files is not None else 150 if quick else 10_000
    args.kills = args.kills if args.kills is not None else 12 if quick else 200
    logging.disable(logging.WARNING)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="campaign-") as temporary:
        folder = (args.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        rows = campaign(args, folder)
    print(f"seed {args.seed}, {(time.monotonic() - began) / 60:.1f} minutes\n\n{table(rows)}\n\n{remarks(rows)}")
    return int(any(row.defects for row in rows))


def campaign(args: argparse.Namespace, folder: Path) -> list[Tally]:
    """All parts, one after the other; Ray beside them in a sample, which has little time."""
    (folder / "material").mkdir()
    making = Child(lambda: material.make(folder / "material"), folder / "material.log")
    material.preload()
    if making.wait(300) != 0:
        making.kill()
        raise SystemExit(f"the material cannot be made, see {making.log}: {' '.join(making.lines()[-1:])}")
    all_parts = attacks(args, folder)
    beside: Child | None = None
    if args.minutes is not None and "ray" in args.parts:
        beside = started("ray", all_parts["ray"][1], folder)
    rows = []
    for name in args.parts:
        seconds, attack = all_parts[name]
        limit = 60 + 4 * seconds if args.minutes is not None else seconds  # a busy machine is no hang
        child = beside if name == "ray" and beside is not None else started(name, attack, folder)
        rows += ended(name, child, folder, limit)
        print(f"{name}: done", file=sys.stderr, flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
