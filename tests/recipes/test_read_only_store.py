"""A store that nobody may write to: every command that only reads it works, and nothing appears in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.recipes.test_reward_verbs import SMALL, fill

from referee.episodes import EpisodeStore
from referee.labels.log import LabelLog

ORDINARY = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.getuid() == 0 else []
"""Takes from root the right to write where the permissions do not let it."""
VERBS = """
import json, sys
from referee.cli import main
print("codes", json.dumps([main(line) for line in json.loads(sys.argv[1])]))
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder in which some things cannot be written until the end."""
    yield tmp_path
    subprocess.run(["chmod", "-R", "u+w", str(tmp_path)], check=True)


def run_read_only(how: str, store: Path, lines: list[list[str]]) -> subprocess.CompletedProcess[str]:
    """Run commands in a process that cannot write to the store."""
    command = [sys.executable, "-c", VERBS, json.dumps(lines)]
    settings = {**os.environ, "HOME": str(store.parent), "XDG_CACHE_HOME": str(store.parent / "cache")}
    if how == "mount":
        mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
        command = ["unshare", "-m", "sh", "-c", mount, str(store), *command]
    else:
        subprocess.run(["chmod", "-R", "a-w", str(store)], check=True)
        command = [*ORDINARY, *command]
    return subprocess.run(command, env=settings, cwd=store.parent, capture_output=True, text=True)


def can_mount() -> bool:
    if not shutil.which("unshare"):
        return False
    line = ["unshare", "-m", "sh", "-c", "mount --bind /tmp /tmp && mount -o remount,bind,ro /tmp"]
    return subprocess.run(line, capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", ["permissions", pytest.param("mount", marks=pytest.mark.skipif(
    not can_mount(), reason="mounting needs rights"))])  # fmt: skip
@pytest.mark.parametrize("manifest", ["whole", "missing"])
def test_reading_needs_no_right_to_write(place: Path, how: str, manifest: str) -> None:
    store = fill(place / "store", range(12))
    LabelLog.of(EpisodeStore(store)).append("e0001", True, frames=3, source="web", who="ada")
    (store / ".lock").unlink(missing_ok=True)
    if manifest == "missing":
        (store / "manifest.jsonl").unlink()
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    model = str(place / "run/checkpoints/best_model")
    lines = [
        ["episodes", "ls", str(store)],
        ["episodes", "check", str(store)],
        ["episodes", "view", str(store), "--out", str(place / "strip.png")],
        ["episodes", "convert", str(store), str(place / "copy")],
        ["episodes", "merge", str(store), "--out", str(place / "merged")],
        ["dataset", "frames", "--raw-data-path", str(store), "--output-dir", str(place / "frames")],
        ["train", str(store), "--out", str(place / "run"), *SMALL, "runner.max_epochs=1"],
        ["score", model, str(store)],
        ["audit", model, str(store), "--allow-training-episodes", "--out", str(place / "report")],
    ]
    done = run_read_only(how, store, lines)
    assert f"codes {json.dumps([0] * len(lines))}" in done.stdout, done.stdout + done.stderr
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before
    copy = EpisodeStore(place / "copy")
    assert len(copy) == 12 and copy.check() == {}
    assert len(LabelLog.of(EpisodeStore(place / "merged")).words) == 1


@pytest.mark.slow
def test_writing_to_it_is_one_line(place: Path) -> None:
    store = fill(place / "store", range(2))
    done = run_read_only("permissions", store, [["episodes", "merge", str(store), "--out", str(store)],
                                                ["episodes", "convert", str(store), str(store / "x")]])  # fmt: skip
    assert "codes [2, 2]" in done.stdout, done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 2 and all(line.startswith("referee: cannot write") and str(store) in line for line in lines)
