"""The process that reads files of others: its limits, how it ends, and who may ask it from where."""

import itertools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from episodes.examples import make_episode
from referee.episodes import EpisodeError
from referee.episodes.formats import pickled
from referee.episodes.formats.detect import read_any
from referee.episodes.formats.pickled import lists_of, write_data
from referee.reading import client, limits, safe_load

EXTRA = """
import os, sys, time; sys.path[:] = sys.argv[2:]
from referee.reading import child, limits, ways
def spin(data, path):
    while True: pass
def hoard(data, path):
    yield bytearray(1 << 30)
def sleep(data, path):
    time.sleep(600)
def crash(data, path):
    os.abort()
def fail(data, path):
    raise ZeroDivisionError("ours")
ways.WAYS.update(spin=spin, hoard=hoard, sleep=sleep, crash=crash, fail=fail)
limits.CPU_BASE = 1.0
{more}
child.serve(int(sys.argv[1]))
"""
"""A process with short limits and with ways of reading that break them."""


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process with short limits."""
    client._CLIENT.close()
    monkeypatch.setattr(client, "_START", EXTRA.replace("{more}", ""))
    monkeypatch.setattr(limits, "CPU_BASE", 1.0)
    yield
    client._CLIENT.close()


def written(path: Path, value: object) -> Path:
    path.write_bytes(pickle.dumps(value, 4))
    return path


def refusal(way: str, path: Path) -> str:
    begin = time.perf_counter()
    with pytest.raises(EpisodeError) as error:
        client.read_value(way, path)
    assert time.perf_counter() - begin < 30
    text = str(error.value)
    assert text.startswith(f"{path}: ") and "\n" not in text
    return text.removeprefix(f"{path}: ")


@pytest.mark.usefixtures("short")
def test_a_file_that_breaks_a_limit_is_refused_and_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "x.pkl", [1, 2])
    assert refusal("spin", path) == "took more than 1 s of CPU time to read: refused"
    assert safe_load.load_pickle(path) == [1, 2]
    assert refusal("hoard", path) == "takes more than 512 MiB of memory to read: refused"
    assert safe_load.load_pickle(path) == [1, 2]
    assert refusal("crash", path) == "ended the process that read it with SIGABRT: refused"
    assert safe_load.load_pickle(path) == [1, 2]
    with pytest.raises(client.Fault, match="ZeroDivisionError: ours"):
        client.read_value("fail", path)
    monkeypatch.setattr(limits, "WALL_BASE", 0.0)
    monkeypatch.setattr(limits, "WALL_FACTOR", 1.0)
    assert refusal("sleep", path) == "was not read within 1 s: refused"
    assert safe_load.load_pickle(path) == [1, 2]


def test_limits_follow_from_the_size() -> None:
    small, large = limits.limits_for(1000), limits.limits_for(100 << 20)
    assert small.memory == (512 << 20) + 40_000 and small.cpu == pytest.approx(20, abs=0.01)
    assert large.cpu == 220 and large.wall == 60 + 5 * 220
    assert (512 << 20) + (300 << 20) <= large.memory <= (512 << 20) + (4000 << 20)


@pytest.mark.usefixtures("short")
def test_what_other_threads_read_goes_on(tmp_path: Path) -> None:
    bad = written(tmp_path / "bad.pkl", 0)
    good = tmp_path / "data.pkl"
    write_data(good, [make_episode(3, pixels=4, seed=seed) for seed in range(12)])
    started = threading.Event()
    refusals: list[str] = []

    def break_it() -> None:
        started.wait()
        refusals.append(refusal("spin", bad))

    thread = threading.Thread(target=break_it)
    thread.start()
    actions = []
    for episode in pickled.read(good):
        actions.append(episode.actions.copy())
        started.set()
        time.sleep(0.15)
    thread.join()
    assert refusals == ["took more than 1 s of CPU time to read: refused"]
    wanted = [make_episode(3, pixels=4, seed=seed).actions for seed in range(12)]
    np.testing.assert_array_equal(actions, wanted)


def test_several_streams_at_once_and_one_given_up(tmp_path: Path) -> None:
    paths = []
    for number in range(3):
        write_data(tmp_path / f"{number}.pkl", [make_episode(2, pixels=4, seed=10 * number + k) for k in range(4)])
        paths.append(tmp_path / f"{number}.pkl")
    first = pickled.read(paths[0])
    next(first)
    del first
    for a, b in zip(pickled.read(paths[1]), pickled.read(paths[2]), strict=True):
        assert not np.array_equal(a.actions, b.actions)
    errors: list[BaseException] = []

    def read_often() -> None:
        try:
            for _ in range(5):
                assert len(list(read_any(tmp_path))) == 12
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not errors


def test_episodes_hold_no_descriptors_and_are_independent(tmp_path: Path) -> None:
    for number in range(40):
        written(tmp_path / f"{number:02}.pkl", lists_of(make_episode(3, pixels=64, seed=number)))
    next(read_any(tmp_path))
    before = len(list(Path("/proc/self/fd").iterdir()))
    episodes = list(read_any(tmp_path))
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 10
    for number, episode in enumerate(episodes):
        for name, array in make_episode(3, pixels=64, seed=number).arrays().items():
            np.testing.assert_array_equal(episode.arrays()[name], array)
            assert episode.arrays()[name].flags.writeable
    episodes[0].observations["main_images"][:] = 7
    assert not (episodes[1].observations["main_images"] == 7).all()


def _in_a_worker(path: Path, answers: "multiprocessing.Queue[object]") -> None:
    answers.put((safe_load.load_pickle(path), client._CLIENT._process._popen.pid))  # type: ignore[union-attr]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_daemonic_worker_has_its_own_process(tmp_path: Path, method: str) -> None:
    path = written(tmp_path / "x.pkl", {"a": 1})
    safe_load.load_pickle(path)
    ours = client._CLIENT._process
    context = multiprocessing.get_context(method)
    answers = context.Queue()
    holder = threading.Event()
    done = threading.Event()

    def hold() -> None:  # another thread is asking at the very moment of the fork
        with client._CLIENT._lock:
            holder.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    holder.wait()
    worker = context.Process(target=_in_a_worker, args=(path, answers), daemon=True)
    worker.start()
    value, pid = answers.get(timeout=60)
    done.set()
    thread.join()
    worker.join(30)
    assert value == {"a": 1} and ours is not None and pid != ours._popen.pid
    assert safe_load.load_pickle(path) == {"a": 1} and client._CLIENT._process is ours


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    path = written(tmp_path / "x.pkl", 1)
    script = (
        "import sys, time; from pathlib import Path; from referee.reading import client, safe_load;"
        "safe_load.load_pickle(Path(sys.argv[1])); print(client._CLIENT._process._popen.pid, flush=True);"
        "time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                break
        except FileNotFoundError:
            break
        time.sleep(0.05)
    else:
        pytest.fail("the process outlives its parent")


def test_without_memfd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episode = make_episode(3, pixels=64)
    path = written(tmp_path / "x.pkl", lists_of(episode))
    client._CLIENT.close()
    monkeypatch.setattr(
        client, "_START", EXTRA.replace("{more}", f"del os.memfd_create; os.environ['TMPDIR'] = {str(tmp_path)!r}")
    )
    try:
        (again,) = pickled.read(path)
        np.testing.assert_array_equal(again.observations["main_images"], episode.observations["main_images"])
        assert [each.name for each in tmp_path.iterdir()] == ["x.pkl"]
    finally:
        client._CLIENT.close()


def test_many_small_arrays_come_back(tmp_path: Path) -> None:
    arrays = [np.full(3, number) for number in range(3000)]
    back = safe_load.load_pickle(written(tmp_path / "x.pkl", arrays))
    assert len(back) == 3000 and all(np.array_equal(a, b) for a, b in zip(arrays, back, strict=True))


def test_pipes_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.pkl")
    for load in (safe_load.load_pickle, safe_load.load_npy, safe_load.load_torch):
        with pytest.raises(EpisodeError, match=r"x\.pkl: is no file"):
            load(tmp_path / "x.pkl")


def test_it_says_when_it_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client._CLIENT.close()
    path = written(tmp_path / "x.pkl", 1)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(tmp_path / "nothing"))
        with pytest.raises(EpisodeError, match="process that reads files cannot be started"):
            safe_load.load_pickle(path)
    assert safe_load.load_pickle(path) == 1


def test_files_are_read_in_the_order_given(tmp_path: Path) -> None:
    for number in range(6):
        written(tmp_path / f"{number}.pkl", lists_of(make_episode(2 + number, pixels=4)))
    (tmp_path / "3.pkl").write_bytes(b"broken")
    stream = pickled.read_files(tmp_path / f"{number}.pkl" for number in range(6))
    assert [len(episode) for episode in itertools.islice(stream, 3)] == [2, 3, 4]
    with pytest.raises(EpisodeError, match=r"3\.pkl"):
        next(stream)
