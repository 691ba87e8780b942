"""A seeded sample of the campaign finds no defect; and the campaign sees defects where there are some."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from campaign_parts.processes import Child  # noqa: E402 - after the path
from campaign_parts.tally import COLUMNS, Tally, as_row, remarks, table  # noqa: E402

PARTS = ("files", "kills", "server", "clock steps", "full disk", "Ray", "twin faults")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sample_of_all_parts_finds_no_defect() -> None:
    """Within three minutes on two idle cores; a busy machine gets half as much again."""
    began = time.monotonic()
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "benchmarks/campaign.py", "--minutes", "3", "--seed", "1"],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    rows = [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("|")][2:]
    numbers = {row[0].strip(): [int(cell.replace(",", "")) for cell in row[1:]] for row in rows}
    assert done.returncode == 0, done.stdout + done.stderr
    for part in PARTS:
        tried = sum(cells[0] for name, cells in numbers.items() if name.startswith(part))
        assert tried > 0, f"{part} was left out:\n{done.stdout}"
    assert all(sum(cells[1:]) == 0 for cells in numbers.values())
    assert time.monotonic() - began < 270


def test_defects_are_counted_and_named() -> None:
    tally = Tally("part")
    with tally.trial("first"):
        raise ValueError("two\nlines")
    with tally.trial("second"):
        tally.expect(False, "gone", "lost")
        tally.expect(True, "there", "lost")
    assert (tally.tried, tally.tracebacks, tally.lost, tally.defects) == (2, 1, 1, 2)
    assert table([tally]).splitlines()[-1] == "| part | 2 | 0 | 1 | 0 | 0 | 1 | 0 |"
    assert remarks([tally]).splitlines() == [
        "part: 1 × tracebacks: first: ValueError: two lines", "part: 1 × lost: gone",
    ]  # fmt: skip
    assert as_row({"part": "files", "tried": 3, "wrong": 1}).defects == 1 and len(COLUMNS) == 7


def test_a_child_is_killed_with_its_helpers_and_its_end_is_told(tmp_path: Path) -> None:
    def parent() -> None:
        print("helper", subprocess.Popen(["sleep", "60"]).pid, flush=True)
        time.sleep(60)

    def fails() -> None:
        raise OSError("no space")

    child = Child(parent, tmp_path / "parent.log")
    end = time.monotonic() + 20
    while not child.lines() and time.monotonic() < end:
        time.sleep(0.01)
    assert child.wait(0.05) is None
    child.kill()
    assert child.code == -9 and not _lives(int(child.lines()[0].split()[1]))
    broken = Child(fails, tmp_path / "fails.log")
    assert broken.wait(20) == 1 and broken.traceback == "OSError: no space"
    small = Child(lambda: (tmp_path / "large").write_bytes(bytes(5000)) and 0, tmp_path / "s.log", file_bytes=4096)
    assert small.wait(20) == 1 and "File too large" in str(small.traceback)


def _lives(pid: int) -> bool:
    time.sleep(0.1)
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
