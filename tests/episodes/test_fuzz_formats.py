"""Mutated and truncated files of every format: a valid episode or a clear error; no traceback, hang or full memory."""

import io
import json
import os
import pickle
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from episodes.examples import make_episode
from referee.episodes import EpisodeError
from referee.episodes.formats import native
from referee.episodes.formats.detect import read_any
from referee.episodes.formats.npy import NpyWriter
from referee.episodes.formats.pickled import frames_of, lists_of, write_data
from referee.reading.safe_load import READER

pytestmark = pytest.mark.usefixtures("inline")
MEMORY = 700 << 20
"""What reading any of these files of a few kB may take, beyond what the process had before."""
SECONDS = 10


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in this process, so that a surprise of a library shows as the cause of an error."""
    monkeypatch.setenv(READER, "inline")


def others() -> list[dict[str, object]]:
    """Transitions as strangers write them, with tensors."""
    return [
        {
            "transitions": {
                "obs": {"states": torch.zeros(1, 2), "main_images": torch.zeros(1, 4, 4, 3, dtype=torch.uint8)},
                "next_obs": {"states": torch.ones(1, 2), "main_images": np.ones((1, 3, 4, 4), np.float32)},
            },
            "action": torch.zeros(1, 3), "rewards": torch.ones(1, 1), "dones": torch.tensor([[step == 1]]),
        }
        for step in range(3)
    ]  # fmt: skip


def sound_files(folder: Path) -> dict[str, bytes]:
    """One small sound file of each kind."""
    episode = make_episode(2, pixels=4)
    made = {
        f"lists_{protocol}.pkl": pickle.dumps(lists_of(episode), protocol) for protocol in (2, 4, 5)
    } | {
        "frames.pkl": pickle.dumps(frames_of(episode), 4),
        "foreign.pkl": pickle.dumps({key: value for key, value in lists_of(episode).items() if key != "meta"}, 4),
        "transitions.pkl": pickle.dumps(others(), 4),
    }  # fmt: skip
    write_data(folder / "data.pkl", [episode, episode])
    native.write(folder / "episode.safetensors", episode)
    (folder / "older.safetensors").write_bytes(without_checksums((folder / "episode.safetensors").read_bytes()))
    path = NpyWriter(folder, folder).append(make_episode(2, pixels=4, success_from=1))
    assert path is not None
    np.save(folder / "plain.npy", np.zeros((3, 4), np.float32))
    buffer = io.BytesIO()
    frames = torch.zeros(3, 4, 4, 3, dtype=torch.uint8)
    torch.save({"images": list(frames.unbind(0)), "labels": [0, 1, 1], "metadata": {"ids": ["a"]}}, buffer)
    made |= {path.name: path.read_bytes() for path in folder.iterdir()} | {"train.pt": buffer.getvalue()}
    for path in folder.iterdir():
        path.unlink()
    return made


def without_checksums(data: bytes) -> bytes:
    """A native file whose header carries no checksum, so that mutations reach what reads it."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = re.sub(rb',"(header_)?crc32":"\w{8}"', b"", data[8:end]).rstrip()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[end:]


def flip(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 2, 8))):
        data[chance.randrange(len(data))] = chance.randrange(256)


def cut(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def swell(data: bytearray, chance: random.Random) -> None:
    """Make some number in it large."""
    at = chance.randrange(len(data))
    data[at : at + chance.choice((1, 2, 4, 8))] = b"\xff" * chance.choice((1, 2, 4, 8))


def repeat(data: bytearray, chance: random.Random) -> None:
    """A part of it several times, or somewhere else."""
    at, to = chance.randrange(len(data)), chance.randrange(len(data))
    data[to:to] = data[at : at + chance.randrange(1, 60)] * chance.choice((1, 1, 2, 50))


def drop(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    del data[at : at + chance.choice((1, 2, 5, 40))]


def step(data: bytearray, chance: random.Random) -> None:
    """Put the opcodes of pickles and the beginnings of their arguments where they do not belong."""
    at = chance.randrange(len(data))
    data[at:at] = chance.choice(OPCODES)


OPCODES = [
    b"(", b"e", b"]", b"}", b"s", b"R", b"b", b"\x81", b"\x93", b"\x94", b"h\x00", b"0", b"t", b"N", b"\x85", b"Q",
    b"cos\nsystem\n", b"K\xff", b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00",
]  # fmt: skip
MUTATIONS: list[Callable[[bytearray, random.Random], None]] = [flip, flip, cut, swell, repeat, drop, step]


def mutated(data: bytes, seed: int) -> bytes:
    chance = random.Random(seed)
    content = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        if content:
            chance.choice(MUTATIONS)(content, chance)
    return bytes(content)


def outcome(path: Path) -> str:
    """What reading gives: `sound`, or `refused`. Whatever else it raises is a fault."""
    begin = time.perf_counter()
    refusal: EpisodeError | None = None
    try:
        for episode in read_any(path):
            episode.validate()
    except EpisodeError as error:
        refusal = error
    assert time.perf_counter() - begin < SECONDS
    if refusal is None:
        return "sound"
    assert path.name in str(refusal) and "\n" not in str(refusal), str(refusal)
    # Errors are foreseen where they arise: a surprise of a library, caught at the rim, would show here.
    foreseen = (EpisodeError, OSError, ValueError) if path.suffix == native.SUFFIX else (EpisodeError, OSError)
    assert refusal.__cause__ is None or isinstance(refusal.__cause__, foreseen), repr(refusal.__cause__)
    return "refused"


ODD: list[object] = [
    None, True, 0, -1, 3, 10**12, 2**59, 1e300, float("nan"), "", "text", b"", b"bytes", (), [], {}, [[]], [None],
    [1, "a"], [[1, 2], [3]], {1: 2}, {"a": 1}, {"success": "yes"}, {"main_images": None}, {"images": {}}, {"obs": {}},
    {"": 1.0}, np.zeros(0), np.zeros((0, 3)), np.zeros((3, 3)), np.ones(5, bool), np.array("x"), np.array(["a"]),
    np.array(None, object), np.array([{}], object), np.float32("nan"), np.zeros((4, 4, 3), np.uint8),
    np.zeros((1, 1, 1, 1, 1, 1), np.uint8), np.zeros((2, 3, 4, 4), np.float32), np.zeros(3, complex), np.uint64(2**63),
    torch.zeros(2, 2), torch.zeros(0),
]  # fmt: skip


def disturbed(value: object, chance: random.Random, rate: float) -> object:
    """The same value with parts of it replaced, lost or doubled."""
    if chance.random() < rate:
        return chance.choice(ODD)
    if isinstance(value, dict):
        kept = {key: disturbed(each, chance, rate) for key, each in value.items() if chance.random() > rate / 2}
        if chance.random() < rate:
            kept[chance.choice(["meta", "infos", "success", "x", "a/b", "masks"])] = chance.choice(ODD)
        return kept
    if isinstance(value, list):
        items = [disturbed(each, chance, rate) for each in value if chance.random() > rate / 2]
        return items + items[-1:] * (chance.random() < rate)
    return value


def run(folder: Path, seeds: range) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    files = sound_files(folder)
    for name, data in files.items():
        path = folder / name
        count = counts.setdefault(name, {"sound": 0, "refused": 0})
        for seed in seeds:
            path.write_bytes(mutated(data, seed))
            try:
                count[outcome(path)] += 1
            except BaseException as error:
                error.add_note(f"{name}, seed {seed}")
                raise
        path.unlink()
    return counts


def disturb(folder: Path, seeds: range) -> dict[str, dict[str, int]]:
    """Sound pickles of values that are not as they should be."""
    episode = make_episode(2, pixels=4)
    lists = lists_of(episode)
    image = np.zeros((3, 3, 4, 4), np.float32)
    values: dict[str, object] = {
        "lists.pkl": lists, "foreign.pkl": {key: value for key, value in lists.items() if key != "meta"},
        "frames.pkl": frames_of(episode), "transitions.pkl": others(), "data.pkl": [lists, lists],
        "x.npy": {"images": {"a": image, "b": image}, "labels": np.zeros(3, np.float32)},
    }  # fmt: skip
    counts: dict[str, dict[str, int]] = {}
    for name, value in values.items():
        count = counts.setdefault(name, {"sound": 0, "refused": 0})
        path = folder / name
        for seed in seeds:
            chance = random.Random(seed)
            changed = disturbed(value, chance, chance.choice((0.005, 0.02, 0.1)))
            if name.endswith("npy"):
                content = np.empty((), object)
                content[()] = changed
                np.save(path, content)
            else:
                path.write_bytes(pickle.dumps(changed, 4))
            try:
                count[outcome(path)] += 1
            except BaseException as error:
                error.add_note(f"{name}, seed {seed}")
                raise
    return counts


def test_sound_files_are_sound(tmp_path: Path) -> None:
    for name, data in sound_files(tmp_path).items():
        (tmp_path / name).write_bytes(data)
        assert outcome(tmp_path / name) == ("refused" if name in ("train.pt", "plain.npy") else "sound"), name
        (tmp_path / name).unlink()


def test_every_cut_is_refused_or_sound(tmp_path: Path) -> None:
    for name, data in sound_files(tmp_path).items():
        for length in range(0, len(data), max(1, len(data) // 60)):
            (tmp_path / name).write_bytes(data[:length])
            assert outcome(tmp_path / name) == "refused", (name, length)


SCRIPT = """
import json, os, resource, sys
sys.path.insert(0, {tests!r})
import torch
from pathlib import Path
from episodes import test_fuzz_formats as fuzz
files = fuzz.sound_files(Path(sys.argv[1]))
size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
resource.setrlimit(resource.RLIMIT_AS, (size + fuzz.MEMORY, size + fuzz.MEMORY))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
counts = fuzz.run(Path(sys.argv[1]), range(int(sys.argv[2]), int(sys.argv[3])))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({{"counts": counts, "grown": (after - before) << 10}}))
"""


def fuzz_in_a_small_process(folder: Path, first: int, last: int) -> dict[str, dict[str, int]]:
    """Read mutated files in a process whose memory is limited; returns how they ended."""
    script = SCRIPT.format(tests=str(Path(__file__).parents[1]))
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder), str(first), str(last)],
        capture_output=True, text=True, timeout=280, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout)
    assert said["grown"] < 200 << 20
    counts: dict[str, dict[str, int]] = said["counts"]
    return counts


def test_mutated_files_are_refused_or_sound(tmp_path: Path) -> None:
    counts = fuzz_in_a_small_process(tmp_path, 0, 200)
    assert len(counts) == 12 and all(sum(count.values()) == 200 for count in counts.values())
    for name, count in counts.items():
        assert count["refused"] > 40, name  # the mutations do damage
        if name == "episode.safetensors":
            assert count["refused"] == 200  # its checksums let nothing pass
        else:
            assert count["sound"] or name in ("train.pt", "plain.npy"), name  # and leave some files readable


def test_disturbed_values_are_refused_or_sound(tmp_path: Path) -> None:
    for name, count in disturb(tmp_path, range(200)).items():
        assert min(count.values()) > 20, (name, count)


@pytest.mark.slow
def test_many_mutated_files_are_refused_or_sound(tmp_path: Path) -> None:
    fuzz_in_a_small_process(tmp_path, 1000, 2000)
    disturb(tmp_path, range(1000, 2000))
