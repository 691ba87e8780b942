"""What a killed process leaves of a file is removed by the next one that writes it; what a living one has is not."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from referee import files

WRITER = """
import sys, time
from pathlib import Path
from referee import files
with files.replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""


def writing(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "writing\n"
    return process


def test_only_what_nobody_writes_any_more_is_removed(tmp_path: Path) -> None:
    goal = tmp_path / "train.pt"
    living, killed = writing(goal), writing(goal)
    try:
        killed.kill()
        killed.wait()
        (tmp_path / ".train.notes.pt").write_text("somebody else's")
        assert len(list(tmp_path.iterdir())) == 3
        files.remove_left(goal)
        (left,) = set(tmp_path.iterdir()) - {tmp_path / ".train.notes.pt"}
        assert f".{living.pid}." in left.name
    finally:
        living.kill()
        living.wait()
    files.remove_left(goal)
    assert [path.name for path in tmp_path.iterdir()] == [".train.notes.pt"]


def test_a_workspace_that_was_killed_is_removed_and_a_living_one_is_not(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from referee import files\n" \
           "with files.workspace(Path(sys.argv[1])): print('there', flush=True); time.sleep(60)"  # fmt: skip
    command = [sys.executable, "-c", code, str(tmp_path / "windows")]
    living, killed = (subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2))
    try:
        for each in (living, killed):
            assert each.stdout is not None and each.stdout.readline() == "there\n"
        killed.kill()
        killed.wait()
        assert len(list(tmp_path.iterdir())) == 2
        with files.workspace(tmp_path / "windows") as mine:
            assert mine.is_dir() and len(list(tmp_path.iterdir())) == 2  # this one, and that of the living process
    finally:
        living.kill()
        living.wait()


@pytest.mark.parametrize("count", [50])
@pytest.mark.alone
def test_replacing_still_writes_whole_files(tmp_path: Path, count: int) -> None:
    began = time.perf_counter()
    for number in range(count):
        with files.replacing(tmp_path / "file.txt", sync=False) as temporary:
            temporary.write_text(str(number))
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"] and (tmp_path / "file.txt").read_text() == str(
        count - 1
    )
    assert time.perf_counter() - began < 2
