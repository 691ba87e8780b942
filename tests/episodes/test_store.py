"""The store: bits come back, several processes share it, and what kills leave behind is put right."""

import contextlib
import json
import multiprocessing
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from episodes.examples import assert_same, episodes, make_episode
from referee.episodes import EpisodeError, EpisodeStore
from referee.episodes.formats import native


@settings(deadline=None, max_examples=30)
@given(episode=episodes())
def test_bits_and_meta_come_back(tmp_path_factory: pytest.TempPathFactory, episode) -> None:  # type: ignore[no-untyped-def]
    store = EpisodeStore(tmp_path_factory.mktemp("store"))
    id = store.append(episode)
    again = EpisodeStore(store.root).read(id)
    assert_same(replace(episode, meta=again.meta), again)
    assert again.meta.task == episode.meta.task and again.meta.id == id
    assert store.check() == {}


def test_reading_maps_the_file(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path)
    episode = store.read(store.append(make_episode(pixels=64)))
    images = episode.observations["main_images"]
    assert not images.flags.owndata and not images.flags.writeable
    assert all(array.flags.aligned for array in episode.arrays().values())


def test_anybody_can_read_the_file(tmp_path: Path) -> None:
    store, episode = EpisodeStore(tmp_path), make_episode()
    with safe_open(store.path(store.append(episode)), framework="numpy") as file:
        np.testing.assert_array_equal(file.get_tensor("observations/states"), episode.observations["states"])
        assert json.loads(file.metadata()["meta"])["task"] == "PickCube"


def test_an_id_is_given_once(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path)
    store.append(make_episode(id="a"))
    with pytest.raises(EpisodeError, match="is there already"):
        store.append(make_episode(id="a", seed=1))
    with pytest.raises(EpisodeError, match="cannot be the id"):
        store.append(make_episode(id="../a"))
    assert_same(store.read("a"), replace(make_episode(id="a"), meta=store.read("a").meta))


@pytest.mark.parametrize("damage", ["removed", "torn", "nonsense", "row of a lost file", "empty"])
def test_a_manifest_is_rebuilt_from_the_files(tmp_path: Path, damage: str) -> None:
    store = EpisodeStore(tmp_path)
    ids = [store.append(make_episode(seed=i, success_from=[None, 3][i % 2])) for i in range(3)]
    rows, manifest = store.rows, tmp_path / "manifest.jsonl"
    text = manifest.read_text()
    if damage == "removed":
        manifest.unlink()
    elif damage == "row of a lost file":
        store.path(ids.pop()).unlink()
        rows.popitem()
    else:
        manifest.write_text({"torn": text[:-40], "nonsense": "[1]\n{}\n\x00" + text, "empty": ""}[damage])
    again = EpisodeStore(tmp_path)
    assert list(again.rows) == sorted(ids)
    assert again.rows == {id: rows[id] for id in sorted(rows)}
    assert EpisodeStore(tmp_path).rows == again.rows
    assert len(manifest.read_text().splitlines()) == len(ids)


def test_a_broken_file_is_named_and_left_alone(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path)
    good, bad = store.append(make_episode()), store.append(make_episode(seed=1))
    data = store.path(bad).read_bytes()
    store.path(bad).write_bytes(data[:-10])
    again = EpisodeStore(tmp_path)
    assert list(again.rows) == [good] and bad in again.broken[bad] and "cut off" in again.broken[bad]
    store.path(bad).write_bytes(data[:-10] + bytes(10))
    problems = EpisodeStore(tmp_path).check()
    assert list(problems) == [bad] and "checksum" in problems[bad]
    assert store.path(bad).exists()


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_no_bytes_can_do_more_than_be_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    native.write(path, make_episode(2, pixels=4))
    content = bytearray(path.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    with contextlib.suppress(EpisodeError):  # anything else that is raised fails the test
        native.read(path).validate()


@pytest.mark.parametrize("pixels", [4, 160])
def test_every_flipped_bit_is_noticed(tmp_path: Path, pixels: int) -> None:
    """Everywhere in a small file, and in a large one, whose sum is another."""
    path = tmp_path / "x.safetensors"
    native.write(path, make_episode(2, pixels=pixels))
    assert native.verify(path)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    assert (b"page_sum" in whole[:header]) == (pixels > 4)
    bits = range(0, 8 * len(whole), 31 if pixels == 4 else 9973)
    for bit in bits:
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        for verify in (True, False):
            if verify or bit // 8 < header:
                with pytest.raises(EpisodeError, match=re.escape(str(path))):
                    native.read(path, verify=verify)
    path.write_bytes(whole + b"more")
    with pytest.raises(EpisodeError, match="checksum"):
        native.read(path, verify=True)


def _fill(root: Path, seed: int, count: int) -> None:
    store = EpisodeStore(root)
    for i in range(count):
        store.append(make_episode(seed=100 * seed + i))


@pytest.mark.slow
def test_several_processes_fill_one_store(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_fill, args=(tmp_path, seed, 20)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    store = EpisodeStore(tmp_path)
    manifest = (tmp_path / "manifest.jsonl").read_text().splitlines()
    assert len(store) == len(manifest) == 60 and store.check() == {}
    assert not list((tmp_path / "episodes").glob(".*"))


@pytest.mark.slow
def test_kill_while_writing_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """Short version; benchmarks/kill_recording.py does it a hundred times through the recorder."""
    script = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from episodes.examples import make_episode; from referee.episodes import EpisodeStore\n"
        "store = EpisodeStore(Path(sys.argv[1]))\n"
        "while True: print(store.append(make_episode(pixels=32)), flush=True)\n"
    )
    acknowledged: set[str] = set()
    for round in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path), str(Path(__file__).parents[1])],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        acknowledged |= {process.stdout.readline().strip() for _ in range(3 + 4 * round)}
        process.kill()
        acknowledged |= {line.strip() for line in process.stdout if line.endswith("\n")}
        process.wait()
        store = EpisodeStore(tmp_path)
        assert store.check() == {} and acknowledged <= set(store.rows)
    assert len(acknowledged) > 20
