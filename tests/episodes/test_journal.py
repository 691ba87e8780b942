"""The journal: what it writes down while an episode runs is what is left after a kill."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from episodes.examples import make_episode
from referee.episodes import EpisodeStore, Meta
from referee.episodes.journal import Journal, recover


def feed(journal: Journal, steps: int) -> None:
    episode = make_episode(steps)
    at = lambda t: {name: value[t] for name, value in episode.observations.items()}  # noqa: E731
    assert episode.success is not None
    journal.start(at(0), success=episode.success[0], signals={"progress": episode.signals["progress"][0]})
    for t in range(steps):
        journal.step(episode.actions[t], at(t + 1), reward=float(episode.rewards[t]), truncated=t == steps - 1,
                     success=episode.success[t + 1],
                     signals={"progress": episode.signals["progress"][t + 1]})  # fmt: skip


@pytest.mark.parametrize("max_states", [1, 2, 7, 1000])
def test_a_finished_journal_is_an_episode_and_leaves_nothing(tmp_path: Path, max_states: int) -> None:
    store, wanted = EpisodeStore(tmp_path), make_episode(9)
    journal = Journal(store, Meta(task="PickCube"), max_states=max_states)
    feed(journal, 9)
    kept = store.read(journal.finish())
    for name in ("actions", "rewards", "truncated", "success"):
        np.testing.assert_array_equal(getattr(kept, name), getattr(wanted, name))
    np.testing.assert_array_equal(kept.observations["main_images"], wanted.observations["main_images"])
    assert not list((tmp_path / "journals").iterdir())


def abandoned(root: Path, steps: int, *, max_states: int, started_only: bool = False) -> None:
    """A journal whose process is gone."""
    child = os.fork()
    if not child:
        try:
            journal = Journal(EpisodeStore(root), Meta(), max_states=max_states, max_seconds=1e9)
            if started_only:
                journal.start({"states": np.zeros(2, np.float32)})
            else:
                feed(journal, steps)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def bring_back(store: EpisodeStore, *, force: bool = False) -> tuple[list[str], list[str]]:
    """The ids of the episodes that came back, and what was said of the journals that are left."""
    lines: list[str] = []
    return recover(store, force=force, say=lines.append), lines


def journals(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "journals").iterdir())


@pytest.mark.parametrize("max_states", [1, 3])
def test_an_abandoned_journal_is_recovered_up_to_its_last_chunk(tmp_path: Path, max_states: int) -> None:
    wanted = make_episode(10)
    abandoned(tmp_path, 10, max_states=max_states)
    store = EpisodeStore(tmp_path)
    [id] = recover(store)
    kept = store.read(id)
    assert 10 - len(kept) < max_states and kept.truncated[-1] and kept.meta.extra == {"recovered": True}
    np.testing.assert_array_equal(kept.actions, wanted.actions[: len(kept)])
    np.testing.assert_array_equal(kept.success, wanted.success[: len(kept) + 1])  # type: ignore[index]
    assert bring_back(store) == ([], []) and not journals(tmp_path)


def test_a_journal_without_a_step_is_forgotten(tmp_path: Path) -> None:
    abandoned(tmp_path, 0, max_states=1, started_only=True)
    store = EpisodeStore(tmp_path)
    assert bring_back(store) == ([], []) and len(store) == 0 and not journals(tmp_path)


def make_old(root: Path, seconds: float) -> None:
    """As if nobody had touched the journals for so long; less than 0: as if the clock had been set back since."""
    for path in [*(root / "journals").rglob("*"), *(root / "journals").iterdir()]:
        os.utime(path, (time.time() - seconds,) * 2)


WRITER = (
    "import sys, time, numpy as np; from pathlib import Path\n"
    "from referee.episodes import EpisodeStore, Meta; from referee.episodes.journal import Journal\n"
    "journal = Journal(EpisodeStore(Path(sys.argv[1])), Meta(), max_seconds=float(sys.argv[2]))\n"
    "journal.start({'states': np.zeros(1, np.float32)})\n"
    "for t in range(int(sys.argv[3])):\n"
    "    time.sleep(0.01)\n"
    "    journal.step([0.0], {'states': np.full(1, t + 1, np.float32)})\n"
    "    print(t + 1, flush=True)\n"
    "print(journal.finish(), flush=True)\n"
)


def writer(root: Path, *, seconds: float, steps: int) -> subprocess.Popen[str]:
    """A process that writes a journal; it prints each step, and the id of the episode at the end."""
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root), str(seconds), str(steps)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def told(process: subprocess.Popen[str], lines: int) -> None:
    assert process.stdout is not None
    for _ in range(lines):
        assert process.stdout.readline()


def assert_counts(store: EpisodeStore, id: str, steps: int) -> None:
    np.testing.assert_array_equal(store.read(id).observations["states"][:, 0], range(steps + 1))


@pytest.mark.slow
@pytest.mark.parametrize("age", [3600.0, -3600.0])
@pytest.mark.parametrize("force", [False, True])
def test_a_suspended_recording_is_not_taken_for_dead(tmp_path: Path, age: float, force: bool) -> None:
    process = writer(tmp_path, seconds=0.02, steps=60)
    told(process, 20)
    os.kill(process.pid, signal.SIGSTOP)
    make_old(tmp_path, age)
    store = EpisodeStore(tmp_path)
    ids, lines = bring_back(store, force=force)
    assert ids == [] and len(store) == 0 and len(journals(tmp_path)) == 1
    assert len(lines) == 1 and f"process {process.pid} on" in lines[0] and "is writing to it" in lines[0]
    os.kill(process.pid, signal.SIGCONT)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert bring_back(store) == ([], [])
    store.refresh()
    assert list(store.rows) == [output.split()[-1]] and errors == ""
    assert_counts(store, output.split()[-1], 60)


@pytest.mark.slow
@pytest.mark.parametrize("age", [0.0, 3600.0, -3600.0])
def test_a_killed_recording_comes_back_at_once_whatever_the_clock_says(tmp_path: Path, age: float) -> None:
    process = writer(tmp_path, seconds=0.02, steps=10_000)
    told(process, 20)
    process.kill()
    process.communicate()
    make_old(tmp_path, age)
    store = EpisodeStore(tmp_path)
    [id] = recover(store)
    assert len(store.read(id)) >= 15 and not journals(tmp_path)
    assert_counts(store, id, len(store.read(id)))


def test_a_run_whose_journal_was_taken_says_so_and_loses_nothing(tmp_path: Path) -> None:
    """As an older version did it: the beginning is brought into the store, and the folder removed."""
    store, episode, lines = EpisodeStore(tmp_path), make_episode(9), []  # type: ignore[var-annotated]
    journal = Journal(store, Meta(), max_states=1, max_seconds=1e9, say=lines.append)
    at = lambda t: {name: value[t] for name, value in episode.observations.items()}  # noqa: E731
    journal.start(at(0))
    for t in range(9):
        if t == 4:
            copy = tmp_path / "copy"
            shutil.copytree(tmp_path / "journals", copy / "journals")
            (copy / "journals" / journal.meta.id / ".owner").unlink()
            taker = EpisodeStore(copy)
            [id] = recover(taker, force=True)
            store.append(taker.read(id))
            shutil.rmtree(tmp_path / "journals" / journal.meta.id)
        journal.step(episode.actions[t], at(t + 1))
        assert len(lines) == (t >= 4)
    assert "was taken away by another process" in lines[0] and journal.meta.id in lines[0]
    assert len(store.read(journal.meta.id)) == 4
    assert journal.finish() == journal.meta.id
    kept = store.read(journal.meta.id, verify=True)
    np.testing.assert_array_equal(kept.actions, episode.actions)
    np.testing.assert_array_equal(kept.observations["main_images"], episode.observations["main_images"])
    assert "recovered" not in kept.meta.extra and not kept.truncated[3] and not journals(tmp_path)
    assert list(EpisodeStore(tmp_path).rows) == [journal.meta.id] and EpisodeStore(tmp_path).check() == {}


def test_later_chunks_of_an_episode_in_the_store_are_not_removed(tmp_path: Path) -> None:
    abandoned(tmp_path, 10, max_states=1)
    [name] = journals(tmp_path)
    folder, aside = tmp_path / "journals" / name, tmp_path / "aside"
    shutil.copytree(folder, aside)
    for path in sorted(folder.glob("*.safetensors"))[5:]:
        path.unlink()
    store = EpisodeStore(tmp_path)
    assert recover(store) == [name] and len(store.read(name)) == 4
    shutil.copytree(aside, folder)  # the run went on
    assert recover(store) == [name] and not journals(tmp_path)
    np.testing.assert_array_equal(store.read(name).actions, make_episode(10).actions)
    shutil.copytree(aside, folder)  # killed between keeping and forgetting
    assert bring_back(store) == ([], []) and not journals(tmp_path)


def test_a_journal_is_kept_under_another_id_where_the_store_holds_something_else(tmp_path: Path) -> None:
    abandoned(tmp_path, 10, max_states=1)
    [name] = journals(tmp_path)
    store = EpisodeStore(tmp_path)
    store.append(make_episode(6, seed=5, id=name))
    ids, lines = bring_back(store)
    assert ids == [f"{name}~2"] and len(lines) == 1 and "holds another episode" in lines[0]
    np.testing.assert_array_equal(store.read(ids[0]).actions, make_episode(10).actions)
    assert not journals(tmp_path) and len(store.read(name)) == 6


@pytest.mark.parametrize("damage", ["flipped", "missing", "cut"])
def test_a_broken_chunk_is_named_and_what_comes_before_it_is_brought_back(tmp_path: Path, damage: str) -> None:
    abandoned(tmp_path, 10, max_states=1)
    [name] = journals(tmp_path)
    broken = tmp_path / "journals" / name / "000006.safetensors"
    data = bytearray(broken.read_bytes())
    data[-3] ^= 4
    if damage == "missing":
        broken.unlink()
    else:
        broken.write_bytes(data if damage == "flipped" else data[:200])
    store = EpisodeStore(tmp_path)
    ids, lines = bring_back(store)
    assert ids == [name] and len(store.read(name)) == 5 and len(lines) == 1 and ".safetensors" in lines[0]
    np.testing.assert_array_equal(store.read(name).actions, make_episode(10).actions[:5])
    left = len(list((tmp_path / "journals" / name).glob("*.safetensors")))
    assert left == 10 + (damage != "missing")
    assert bring_back(store) == ([], lines)  # once is enough, and nothing is removed


@pytest.mark.parametrize("owner", ["none", "nonsense", "another machine"])
def test_where_nobody_can_tell_a_journal_is_left_until_forced(tmp_path: Path, owner: str) -> None:
    abandoned(tmp_path, 4, max_states=1)
    [name] = journals(tmp_path)
    path = tmp_path / "journals" / name / ".owner"
    if owner == "none":
        path.unlink()
    else:
        path.write_text('{"pid": 1, "host": "elsewhere", "boot": "x"}' if owner == "another machine" else "[[")
    make_old(tmp_path, 1e6)
    store = EpisodeStore(tmp_path)
    ids, lines = bring_back(store)
    assert ids == [] and len(lines) == 1 and "referee episodes check --adopt" in lines[0]
    assert recover(store, force=True) == [name]


@pytest.mark.slow
def test_without_locks_the_process_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = writer(tmp_path, seconds=0.02, steps=10_000)
    told(process, 10)
    monkeypatch.setattr(fcntl, "flock", no_locks)
    store = EpisodeStore(tmp_path)
    for force in (False, True):
        ids, lines = bring_back(store, force=force)
        assert ids == [] and f"process {process.pid} on" in lines[0]
    process.kill()
    process.communicate()
    assert len(recover(store)) == 1


def no_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.slow
def test_a_kill_loses_at_most_the_last_second(tmp_path: Path) -> None:
    process = writer(tmp_path, seconds=0.3, steps=10_000)
    told(process, 100)
    assert process.stdout is not None
    process.kill()
    last = 100 + len(process.stdout.read().splitlines())
    store = EpisodeStore(tmp_path)
    process.wait()
    [id] = recover(store)
    kept = store.read(id)
    np.testing.assert_array_equal(kept.observations["states"][:, 0], range(len(kept) + 1))
    assert last - len(kept) <= 45  # 0.3 s of 10 ms steps, and some for a busy machine
