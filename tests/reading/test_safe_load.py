"""Safe loading: what data needs comes back as it was; anything else is refused, without running or filling memory."""

import io
import os
import pickle
import struct
import subprocess
import sys
import time
import tracemalloc
import warnings
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from referee.episodes import EpisodeError
from referee.reading import pickle_reader, pickle_types, safe_load

# -- what comes back ---------------------------------------------------------------------------------------------------

VALUES = {
    "floats": np.arange(6.0).reshape(2, 3),
    "pictures": np.arange(128 * 128 * 3, dtype=np.uint8).reshape(128, 128, 3),
    "fortran, other byte order": np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)),
    "truth": np.array([True, False]),
    "empty": np.zeros((0, 5), np.float32),
    "no axes": np.array(3.5),
    "text array": np.array(["ab", "c"]),
    "scalar": np.float32(2.5),
    "true": np.bool_(True),
    "tensor": torch.arange(12.0).reshape(3, 4)[:, 1:3],
    "tensor backwards": torch.arange(4).flip(0),
    "bfloat16": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "truth tensor": torch.tensor([True, False]),
    "empty tensor": torch.zeros(0, 3),
    "ordered": OrderedDict(a=1, b=[2]),
    "bytes": b"z" * 10_000,
    "bytearray": bytearray(b"abc"),
    "mixed": [1, -5, 2**40, -(2**70), 1.5, None, True, "hé", (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {1, 2}, 1 + 2j],
    "frozen": frozenset({"a"}),
}


def same(was: object, now: object) -> None:
    if isinstance(was, torch.Tensor):
        was = was.float().numpy() if was.dtype == torch.bfloat16 else was.numpy()
    if isinstance(was, np.ndarray):
        assert isinstance(now, np.ndarray) and now.dtype == was.dtype.newbyteorder("=") and now.flags.aligned
        np.testing.assert_array_equal(now, was)
    elif isinstance(was, bytes | bytearray):
        assert bytes(now) == bytes(was)  # type: ignore[call-overload]
    else:
        assert now == was and (isinstance(was, OrderedDict | frozenset) or type(now) is type(was))


def load(data: bytes, folder: Path, ending: str = ".pkl") -> object:
    path = folder / f"file{ending}"
    path.write_bytes(data)
    return {".pkl": safe_load.load_pickle, ".npy": safe_load.load_npy, ".pt": safe_load.load_torch}[ending](path)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("name", VALUES)
def test_values_come_back(tmp_path: Path, name: str, protocol: int) -> None:
    value = VALUES[name]
    same(value, load(pickle.dumps(value, protocol), tmp_path))
    first, second = load(pickle.dumps([value, value], protocol), tmp_path)  # type: ignore[misc]
    same(value, first)
    same(value, second)


def test_numpy_1_comes_back(tmp_path: Path) -> None:
    data = pickle.dumps(VALUES["floats"], 2)
    assert b"numpy._core.multiarray" in data
    same(VALUES["floats"], load(data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"), tmp_path))


LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text() | st.binary()
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner), max_leaves=30
)


@settings(deadline=None, max_examples=150)
@given(value=TREES, protocol=st.integers(2, 5))
def test_any_plain_value_comes_back(tmp_path_factory: pytest.TempPathFactory, value: object, protocol: int) -> None:
    assert load(pickle.dumps(value, protocol), tmp_path_factory.getbasetemp()) == value


def test_large_arrays_stay_mapped(tmp_path: Path) -> None:
    path = tmp_path / "large.pkl"
    path.write_bytes(pickle.dumps([np.full((1000, 1000), index, np.uint8) for index in range(40)], 4))
    tracemalloc.start()
    arrays = safe_load.load_pickle(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    assert [int(array.mean()) for array in arrays] == list(range(40))


# -- what is refused ---------------------------------------------------------------------------------------------------


class Calls:
    """Pickles as a call of anything."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> object:
        return self.reduced


class Thing:
    """A class of somebody's own."""


def refuse(data: bytes, folder: Path, ending: str = ".pkl") -> str:
    """The error for a file; it must come soon, and with little memory, and be the same in the other process."""
    with pytest.raises(EpisodeError) as error:
        load(data, folder, ending)
    text = str(error.value)
    tracemalloc.start()
    begin = time.perf_counter()
    os.environ[safe_load.READER] = "inline"
    try:
        with pytest.raises(EpisodeError) as error:
            load(data, folder, ending)
        seconds, peak = time.perf_counter() - begin, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        del os.environ[safe_load.READER]
    assert str(error.value) == text
    assert text.startswith(f"{folder / 'file'}{ending}: ") and "\n" not in text
    assert peak < 30 * len(data) + (100 << 20) and seconds < 30
    return text


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (os.system, ("touch {marker}",), "posix.system"),
        (eval, ("open('{marker}', 'w')",), "eval"),
        (getattr, ({}, "get"), "getattr"),
        (open, ("{marker}", "w"), "io.open"),
        (np.load, ("{marker}",), "numpy.load"),
        (torch.load, ("{marker}",), "torch.serialization.load"),
        (Path, ("x",), "pathlib.Path"),
        (Thing, (), "Thing"),
    ],
)
def test_other_names_are_refused(
    tmp_path: Path, function: object, arguments: tuple[object, ...], name: str, protocol: int
) -> None:
    marker = tmp_path / "RAN"
    given = [each.format(marker=marker) if isinstance(each, str) else each for each in arguments]
    for value in (Calls(function, *given), {"frames": [{"obs": Calls(function, *given)}]}):
        text = refuse(pickle.dumps(value, protocol), tmp_path)
        assert name in text and "which data has no need of: refused" in text
        content = np.array({"images": value}, dtype=object)
        buffer = io.BytesIO()
        np.save(buffer, content, allow_pickle=True)
        assert name in refuse(buffer.getvalue(), tmp_path, ".npy")
        buffer = io.BytesIO()
        torch.save({"metadata": value}, buffer)
        assert name in refuse(buffer.getvalue(), tmp_path, ".pt")
    assert not marker.exists()


def test_objects_and_states_are_refused(tmp_path: Path) -> None:
    assert "Thing" in refuse(pickle.dumps(Thing(), 4), tmp_path)
    assert "Thing" in refuse(pickle.dumps(np.array([1, Thing()], object), 4), tmp_path)
    gadgets = {
        "NEWOBJ": b"\x80\x04cnumpy\nndarray\n)\x81.",
        "INST": b"\x80\x02(ios\nsystem\n.",
        "OBJ": b"\x80\x02(cnumpy\nndarray\no.",
        "EXT1": b"\x80\x02\x82\x01.",
        "PERSID": b"\x80\x02K\x01Q.",
        "BUILD of a dict": b"\x80\x02}}X\x01\x00\x00\x00aK\x01sb.",
        "BUILD of a list": b"\x80\x02]}b.",
        "call of a number": b"\x80\x02K\x01)R.",
        "call of a mere name": b"\x80\x02cnumpy\nndarray\n)R.",
        "name left over": b"\x80\x02cnumpy\nndarray\n.",
        "name in a list": b"\x80\x02]cnumpy\nndarray\na.",
        "a name built of data": b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R.",
        "names that are no text": b"\x80\x04K\x01K\x02\x93.",
        "array begun only": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R.",
        "array of an own class": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\ndtype\nK\x00\x85C\x01b\x87R.",
        "records": b"\x80\x02cnumpy\ndtype\nX\x02\x00\x00\x00V8K\x00K\x01\x87R.",
        "out of band": b"\x80\x05\x97.",
        "duplicate": b"\x80\x02K\x012.",
        "protocol 0": pickle.dumps([1.5, "a"], 0),
        "protocol 9": b"\x80\x09N.",
        "nothing": b"",
        "text": b"hello, world\n",
        "append to a number": b"\x80\x02K\x01K\x02a.",
        "items of a list": b"\x80\x02]K\x01K\x02s.",
        "odd items": b"\x80\x02}(K\x01u.",
        "stack is empty": b"\x80\x02a.",
        "no mark": b"\x80\x02t.",
        "unknown memo": b"\x80\x02h\x07.",
        "no UTF-8": b"\x80\x02X\x01\x00\x00\x00\xff.",
    }
    for name, data in gadgets.items():
        assert refuse(data, tmp_path), name


def reduce_array(shape: tuple[int, ...], dtype: str, content: object) -> bytes:
    """A pickled array whose parts need not fit."""
    beginning, _, _ = np.zeros(1).__reduce__()

    class Beginning:
        def __reduce__(self) -> object:
            return beginning, (np.ndarray, (0,), b"b"), (1, shape, np.dtype(dtype), False, content)

    return pickle.dumps(Beginning(), 4)


def lists(depth: int, width: int) -> bytes:
    """`depth` lists, each holding the one before `width` times."""
    parts = [b"\x80\x04]\x94K\x01a0"]
    for level in range(depth):
        parts.append(b"](" + (b"h" + bytes([level])) * width + b"e\x940")
    return b"".join(parts) + b"h" + bytes([depth]) + b"."


def tensor(size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> bytes:
    """A pickled tensor of 6 floats that claims to be larger."""
    _, (storage, *_) = torch.zeros(6).__reduce_ex__(4)
    return pickle.dumps(Calls(torch._utils._rebuild_tensor_v2, storage, offset, size, stride, False, OrderedDict()), 4)


def called(name: str, arguments: bytes, count: int, before: bytes = b"") -> bytes:
    """A list of `count` results of a name, called each time with what `arguments` pushes."""
    module, _, function = name.rpartition(".")
    head = b"\x80\x04" + before + f"c{module}\n{function}\n".encode() + b"q\x0a0"
    return head + b"](" + (b"h\x0a" + arguments + b"R") * count + b"e."


def memoed(value: bytes, slot: int) -> bytes:
    """Keep a value for later."""
    return value + b"q" + bytes([slot]) + b"0"


def dtype(code: str) -> bytes:
    text = code.encode()
    return b"cnumpy\ndtype\n\x8c" + bytes([len(text)]) + text + b"\x89\x88\x87R"


def scalars(code: str, content: bytes, count: int) -> bytes:
    """Text of numpy, made again and again out of the same bytes, which stand at a multiple of 4 in the file."""
    for padding in range(4):
        before = [memoed(b"N", slot) for slot in range(8)] + [memoed(dtype(code), 8)]
        before += [b"N" * padding, memoed(b"h\x08B" + struct.pack("<I", len(content)) + content + b"\x86", 9)]
        data = called("numpy._core.multiarray.scalar", b"h\x09", count, b"".join(before))
        if data.index(content) % 4 == 0:
            return data
    raise AssertionError


def storage_bytes() -> bytes:
    """A storage as `_load_from_bytes` reads it, with a head that is long to read."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):
        torch.save(torch.zeros(4).storage(), buffer, _use_new_zipfile_serialization=False)
    content = buffer.getvalue()
    return content.replace(b".", b"N0" * 40_000 + b".", 1)


def storages(content: bytes, count: int) -> bytes:
    before = [memoed(b"N", slot) for slot in range(9)]
    before += [memoed(b"B" + struct.pack("<I", len(content)) + content + b"\x85", 9)]
    return called("torch.storage._load_from_bytes", b"h\x09", count, b"".join(before))


def types_set_again(count: int) -> bytes:
    """One type that stands in many places of the memo and gets its state many times."""
    state = b"(K\x03\x8c\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t"
    return b"\x80\x04" + memoed(state, 0) + dtype("f4") + b"\x94" * count + b"h\x00b" * count + b"0N."


SPENDTHRIFT = {
    "numpy text, 250 KB": (scalars("U16000", b"a\0\0\0" * 16_000, 37_000), "more memory"),
    "numpy text, 850 KB": (scalars("U50000", b"a\0\0\0" * 50_000, 130_000), "more memory"),
    "numpy bytes, 250 KB": (scalars("S50000", b"a" * 50_000, 40_000), "more memory"),
    "a storage, 108 KB": (storages(storage_bytes(), 5_000), "cut off"),
    "a type, 100 KB": (types_set_again(25_000), "read"),
}
"""Files that made gigabytes out of themselves, or took minutes; and what is to be said of them."""


BOMBS = {
    "bytes that are not there": b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"x.",
    "bytes, 4 GB": b"\x80\x03B" + struct.pack("<I", 2**32 - 1) + b"x.",
    "bytearray that is not there": b"\x80\x05\x96" + struct.pack("<Q", 2**62) + b"x.",
    "text that is not there": b"\x80\x04\x8d" + struct.pack("<Q", 2**63) + b"x.",
    "frame that is not there": b"\x80\x04\x95" + struct.pack("<Q", 2**50) + b"N.",
    "memo": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "bytearray of a number": pickle.dumps(Calls(bytearray, 10**12), 4),
    "bytes of a number": pickle.dumps(Calls(bytes, 10**12), 4),
    "set of a number": pickle.dumps(Calls(set, 10**12), 4),
    "long number": pickle.dumps(2 ** (8 * 200), 4),
    "very long number": pickle.dumps(2 ** (8 * 100_000), 4),
    "huge shape": reduce_array((10**6, 10**6), "f4", b"1234"),
    "shape that overflows": reduce_array((2**40, 2**40, 2**40), "f4", b""),
    "empty shape that overflows": reduce_array((0, 2**40, 2**40), "f4", b""),
    "negative shape": reduce_array((-1, 4), "f4", b"1" * 16),
    "many axes": reduce_array((1,) * 200, "u1", b"1"),
    "huge array of objects": reduce_array((10**12,), "O", [None]),
    "lists that double": lists(40, 2),
    "lists that grow tenfold": lists(12, 10),
    "marks": b"\x80\x04" + b"(" * 100_000 + b".",
    "nested lists": b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "nested tuples": b"\x80\x04)" + b"\x85" * 200_000 + b".",
    "nested dicts": b"\x80\x04" + b"}K\x01" * 100_000 + b"N" + b"s" * 100_000 + b".",
    "a list in itself": b"\x80\x04]\x94h\x00a.",
    "many sets": b"\x80\x04" + b"\x8f" * 400_000 + b".",
    "tensor beyond its storage": tensor((7,), (1,)),
    "tensor beyond by its offset": tensor((6,), (1,), 1),
    "tensor beyond by its stride": tensor((2, 2), (5, 1)),
    "tensor that repeats itself": tensor((10**9,), (0,)),
    "tensor that repeats itself a bit": tensor((10**8, 1), (0, 1)),
    "tensor with a negative stride": tensor((2,), (-1,), 3),
    "keys that collide": pickle.dumps({index * (2**61 - 1): None for index in range(2000)}, 4),
    "keys that are tuples": pickle.dumps({(1, 2): None}, 4),
}


LOAD = """
import resource, sys, time
from pathlib import Path
from referee.episodes import EpisodeError
from referee.reading import pickle_reader, pickle_types, safe_load
before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
try:
    value = safe_load.load_pickle(Path(sys.argv[1]))
    said = "read"
except EpisodeError as error:
    said = str(error)
print(time.perf_counter() - begin, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10, said, sep="\\n")
"""


@pytest.mark.parametrize("name", SPENDTHRIFT)
def test_what_is_made_is_charged(tmp_path: Path, name: str) -> None:
    """The reader itself, without the limits of another process, ends soon and with little memory."""
    path = tmp_path / "file.pkl"
    data, reason = SPENDTHRIFT[name]
    path.write_bytes(data)
    environment = {**os.environ, safe_load.READER: "inline"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(path)], capture_output=True, text=True, timeout=60, env=environment, check=True
    )
    seconds, grown, said = done.stdout.splitlines()
    assert float(seconds) < 10 and int(grown) < 200 << 20
    assert reason in said


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("numpy.dtype", b"\x8c\x03U77\x89\x88\x87"),
        ("numpy._core.multiarray._reconstruct", b"cnumpy\nndarray\nK\x00\x85C\x01b\x87"),
        ("numpy._core.multiarray.scalar", b"h\x08C\x08abcdefgh\x86"),
        ("numpy._core.numeric._frombuffer", b"(C\x08abcdefghh\x08K\x01\x85\x8c\x01Ct"),
        ("builtins.complex", b"G\x00\x00\x00\x00\x00\x00\x00\x00G\x00\x00\x00\x00\x00\x00\x00\x00\x86"),
        ("builtins.set", b"](K\x01K\x02K\x03e\x85"),
        ("_codecs.encode", b"\x8c\x05abcde\x8c\x06latin1\x86"),
        ("collections.OrderedDict", b"](\x8c\x01aK\x01\x86e\x85"),
    ],
)
def test_each_thing_costs_at_least_what_it_takes(name: str, arguments: bytes) -> None:
    count = 20_000
    before = b"".join([*(memoed(b"N", slot) for slot in range(8)), memoed(dtype("f8"), 8), memoed(b"N", 9)])
    data = memoryview(called(name, arguments, count, before))
    budget = pickle_reader.Budget(len(data))
    full = budget.left
    tracemalloc.start()
    made = pickle_reader.Reader(data, pickle_types.NAMES, budget).run()
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(made) == count and full - budget.left > 0.9 * taken


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused(tmp_path: Path, name: str) -> None:
    refuse(BOMBS[name], tmp_path)


def test_storages_within_storages_are_refused(tmp_path: Path) -> None:
    inner = b"x"
    for _ in range(2000):
        inner = pickle.dumps(Calls(torch.storage._load_from_bytes, inner), 4)
    refuse(inner, tmp_path)


def test_what_is_repeated_honestly_is_kept(tmp_path: Path) -> None:
    image = np.full((128, 128, 3), 7, np.uint8)
    frames = load(pickle.dumps([image] * 500, 4), tmp_path)
    assert isinstance(frames, list) and len(frames) == 500 and frames[0] is frames[-1]


# -- .npy --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f4", ">f8", "u1", "?", "i2", "c8", "U3"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_plain_npy_comes_back(tmp_path: Path, dtype: str, order: str) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(dtype, order=order)  # type: ignore[call-overload]
    path = tmp_path / "x.npy"
    np.save(path, array)
    same(array, safe_load.load_npy(path))


def test_plain_npy_is_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4000, 1000), np.float32))
    tracemalloc.start()
    array = safe_load.load_npy(tmp_path / "x.npy")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20 and array.shape == (4000, 1000)
    tracemalloc.stop()


def npy(header: str, content: bytes = b"", version: int = 1) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + content


@pytest.mark.parametrize(
    "data",
    [
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}", b"\0" * 16),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (5,)}", b"\0" * 16),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-4,)}", b"\0" * 16),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': 4}", b"\0" * 16),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4,)}", b"\0" * 16)[:-1],
        npy("{'descr': '<f4', 'shape': (4,)}", b"\0" * 16),
        npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4,)}", b"\0" * 16),
        npy("{'descr': 'V4', 'fortran_order': False, 'shape': (4,)}", b"\0" * 16),
        npy("{'descr': 'nonsense', 'fortran_order': False, 'shape': (4,)}", b"\0" * 16),
        npy("__import__('os').system('true')"),
        npy("(" * 5000),
        npy("-" * 9000 + "1"),
        npy("[" * 90 + "]" * 90),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4,)}", b"\0" * 16, version=7),
        b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b"{}",
        b"\x93NUMPY",
        b"",
    ],
)
def test_broken_npy_is_refused(tmp_path: Path, data: bytes) -> None:
    refuse(data, tmp_path, ".npy")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_versions_of_npy(tmp_path: Path, version: int) -> None:
    header = "{'descr': '<i4', 'fortran_order': False, 'shape': (2,)}"
    same(np.array([1, 2], "i4"), load(npy(header, struct.pack("<ii", 1, 2), version), tmp_path, ".npy"))


def test_object_npy_holds_one_value(tmp_path: Path) -> None:
    value = {"images": {"front": np.ones((2, 3, 4, 4), np.float32)}, "labels": np.zeros(2, np.float32)}
    np.save(tmp_path / "x.npy", value, allow_pickle=True)  # type: ignore[arg-type]
    loaded = safe_load.load_npy(tmp_path / "x.npy")
    same(value["labels"], loaded["labels"])
    same(value["images"]["front"], loaded["images"]["front"])  # type: ignore[call-overload]
    np.save(tmp_path / "x.npy", np.array([1, None], object), allow_pickle=True)
    with pytest.raises(EpisodeError, match="one dict is needed"):
        safe_load.load_npy(tmp_path / "x.npy")


# -- .pt ---------------------------------------------------------------------------------------------------------------


def saved(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def test_pt_comes_back_as_torch_reads_it(tmp_path: Path) -> None:
    frames = torch.arange(5 * 4 * 4 * 3, dtype=torch.uint8).reshape(5, 4, 4, 3)
    module = torch.nn.Linear(3, 2)
    value = {
        "images": list(frames.unbind(0)),
        "labels": [0, 1, 0, 1, 1],
        "metadata": {"split": 0.2, "ids": ["a", "b"], "none": None, "shape": (4, 4)},
        "kinds": [torch.arange(4, dtype=getattr(torch, kind)) for kind in ("float64", "float16", "bfloat16", "int8")],
        "turned": torch.arange(6.0).reshape(2, 3).T,
        "truth": torch.tensor([True, False]),
        "state": module.state_dict(),
        "parameter": module.weight,
        "size": frames.shape,
    }
    path = tmp_path / "x.pt"
    path.write_bytes(saved(value))
    ours, theirs = safe_load.load_torch(path), torch.load(path, weights_only=True)
    assert (
        ours["labels"] == theirs["labels"] and ours["metadata"] == theirs["metadata"] and ours["size"] == (5, 4, 4, 3)
    )
    pairs = [*zip(ours["images"], theirs["images"], strict=True), *zip(ours["kinds"], theirs["kinds"], strict=True)]
    pairs += [(ours[name], theirs[name]) for name in ("turned", "truth", "parameter")]
    pairs += [(ours["state"][name], theirs["state"][name]) for name in theirs["state"]]
    for mine, other in pairs:
        assert mine.dtype == other.dtype and mine.shape == other.shape and mine.stride() == other.stride()
        assert torch.equal(mine, other)
    assert ours["images"][1].data_ptr() == ours["images"][0].data_ptr() + 48  # views of one storage
    ours["images"][0][0] = 255  # private: the file stays as it is
    assert torch.equal(torch.load(path, weights_only=True)["images"][0], frames[0])


def packed(data: bytes, **changes: bytes) -> bytes:
    """The same archive with other content, and deflated if `deflate` is given."""
    result = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if changes.pop("deflate", b"") else zipfile.ZIP_STORED
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(result, "w", kind) as new:
        for name in old.namelist():
            new.writestr(name, changes.get(name.rpartition("archive/")[2].replace("/", "_"), old.read(name)))
    return result.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        packed(saved(torch.zeros(10_000_000)), deflate=b"1"),
        packed(saved(torch.zeros(10)), data_0=b"1234"),
        packed(saved(torch.zeros(10)), byteorder=b"big"),
        saved(torch.zeros(10))[:-100],
        saved(torch.zeros(1000))[:2000],
        saved({"sparse": torch.eye(3).to_sparse()}),
        pickle.dumps([1]),
        b"PK",
        b"PK\x05\x06" + b"\0" * 18,
        b"PK\x05\x06" + b"\xff" * 18,
        b"",
    ],
)
def test_broken_pt_is_refused(tmp_path: Path, data: bytes) -> None:
    refuse(data, tmp_path, ".pt")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(EpisodeError, match=r"away\.pkl"):
        safe_load.load_pickle(tmp_path / "away.pkl")
    with pytest.raises(EpisodeError, match=str(tmp_path)):
        safe_load.load_npy(tmp_path)
