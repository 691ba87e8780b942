"""What the few names in a pickle of data build: arrays of numpy, tensors of torch, and plain containers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from referee.errors import EpisodeError
from referee.reading.pickle_reader import Budget, Name, Reader, Unfinished, key

MAX_AXES = 32
CODE = re.compile(r"[biufc](1|2|4|8|16)|[SU][1-9][0-9]{0,4}|O8?")
"""The types that arrays of data may have, as numpy writes them."""
LEGACY_MAGIC, LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
MAX_STORAGE_HEAD = 4096
"""The five pickles before the elements of a storage have some 300 bytes."""
ARRAY_BYTES, UNFINISHED_BYTES, SCALAR_BYTES, STORAGE_BYTES = 512, 384, 128, 2048
"""What an array, a beginning, a number and a storage take besides their content, each measured and rounded up."""

STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool",
}  # fmt: skip
"""torch's names for storages, and the type of their elements."""


class Dtype(Unfinished):
    """The type of an array's elements."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        super().__init__()
        self.value = dtype

    def finish(self, reader: Reader, state: Any) -> Any:
        """Itself, with the byte order that the state tells."""
        if type(state) is not tuple or len(state) < 5 or not _is_one(state[1], "<", ">", "|", "="):
            raise EpisodeError("holds a broken type of array")
        if any(each is not None for each in state[2:5]):
            raise EpisodeError("holds an array of records, which data has no need of: refused")
        if state[1] in ("<", ">"):
            self.value = self.value.newbyteorder(state[1])
        return self


class Beginning(Unfinished):
    """An array of which neither type nor content is known yet."""

    def finish(self, reader: Reader, state: Any) -> Any:
        """The array."""
        if type(state) is not tuple or len(state) != 5:
            raise EpisodeError("holds a broken array")
        _, shape, dtype, fortran, content = state
        reader.budget.spend(ARRAY_BYTES)
        return make_array(reader.budget, content, dtype, shape, fortran=bool(fortran))


class Storage:
    """The elements of tensors, as torch keeps them; `base` is whatever the maker of tensors wants to keep with it."""

    def __init__(self, kind: str, data: memoryview) -> None:
        self.kind = kind
        self.data = data
        self.base: Any = None

    @property
    def byte_count(self) -> int:
        """Bytes of its elements."""
        return len(self.data)


def make_array(budget: Budget, content: Any, dtype: Any, shape: Any, *, fortran: bool = False) -> np.ndarray:
    """An array over `content`, which must have the size that type and shape say; copied only where it has to be."""
    count = elements(shape)
    if not isinstance(dtype, Dtype):
        raise EpisodeError("holds an array without a type")
    if dtype.value.kind == "O":
        return _objects(budget, content, shape, count)
    if not isinstance(content, bytes | bytearray | memoryview) or len(content) != count * dtype.value.itemsize:
        raise EpisodeError("holds an array whose content does not fit its shape")
    return shaped(budget, np.frombuffer(content, dtype.value) if count else np.empty(0, dtype.value), shape, fortran)


def shaped(budget: Budget, flat: np.ndarray, shape: tuple[int, ...], fortran: bool = False) -> np.ndarray:
    """The array in its shape, aligned and in the byte order of this machine."""
    if flat.dtype.kind == "b":
        budget.spend(flat.nbytes)
        flat = flat.view(np.uint8) != 0  # a byte may hold anything, a truth value only two
    elif not flat.dtype.isnative or not flat.flags.aligned:
        budget.spend(flat.nbytes)
        flat = flat.astype(flat.dtype.newbyteorder("="))
    return flat.reshape(shape, order="F" if fortran else "C")


def elements(shape: Any) -> int:
    """The number of elements of a shape, which must be one."""
    if type(shape) is not tuple or len(shape) > MAX_AXES or not all(type(n) is int and 0 <= n < 2**48 for n in shape):
        raise EpisodeError("holds an array with a broken shape")
    # Even an empty array must not have axes whose product overflows.
    if math.prod(n for n in shape if n) >= 2**56:
        raise EpisodeError("holds an array with a broken shape")
    return math.prod(shape)


def make_tensor_array(budget: Budget, storage: Any, offset: Any, size: Any, stride: Any) -> np.ndarray:
    """A tensor as an array, copied only where its elements do not lie one after the other."""
    check_tensor(storage, offset, size, stride)
    budget.spend(ARRAY_BYTES)
    dtype = np.dtype("uint16" if storage.kind == "bfloat16" else storage.kind)
    if storage.base is None:
        storage.base = np.frombuffer(storage.data, dtype) if len(storage.data) else np.empty(0, dtype)
    if 0 in size:
        return np.empty(size, dtype)
    strides = [step * dtype.itemsize for step in stride]
    view = np.lib.stride_tricks.as_strided(storage.base[offset:], size, strides)
    if not view.flags.c_contiguous:
        budget.spend(view.nbytes)
        view = np.ascontiguousarray(view)
    flat = view.reshape(-1)
    if storage.kind == "bfloat16":
        budget.spend(3 * flat.nbytes)
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    return shaped(budget, flat, size)


def check_tensor(storage: Any, offset: Any, size: Any, stride: Any) -> None:
    """Refuse a tensor that reaches beyond its storage."""
    if not isinstance(storage, Storage):
        raise EpisodeError("holds a tensor without a storage")
    count = elements(size)
    elements(stride)
    if type(offset) is not int or offset < 0 or len(size) != len(stride):
        raise EpisodeError("holds a broken tensor")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if count else offset - 1
    if (last + 1) * itemsize(storage.kind) > storage.byte_count:
        raise EpisodeError("holds a tensor that reaches beyond its storage")


def itemsize(kind: str) -> int:
    """Bytes of an element."""
    return 2 if kind == "bfloat16" else np.dtype(kind).itemsize


class Reference(NamedTuple):
    """What torch says about a storage that stands elsewhere."""

    key: str
    kind: str
    numel: int


def reference(said: Any) -> Reference:
    """The reference in what a pickle of torch says, which must be one to a storage."""
    if type(said) is not tuple or len(said) < 5 or not _is_one(said[0], "storage"):
        raise EpisodeError("refers to something outside of the file that is no storage: refused")
    _, name, where, _, count = said[:5]
    kind = STORAGES.get(name.text.removeprefix("torch.")) if type(name) is Name else None
    if kind is None or type(where) is not str or type(count) is not int or not 0 <= count < 2**48:
        raise EpisodeError("refers to a broken storage")
    return Reference(where, kind, count)


def _is_one(value: Any, *choices: str) -> bool:
    """Whether a value, which may be anything, is one of those texts."""
    return type(value) is str and value in choices


def _objects(budget: Budget, content: Any, shape: tuple[int, ...], count: int) -> np.ndarray:
    if type(content) is not list or len(content) != count:
        raise EpisodeError("holds an array whose content does not fit its shape")
    budget.spend(8 * count)
    flat = np.empty(count, object)
    for index, value in enumerate(content):
        flat[index] = value
    return flat.reshape(shape)


def _reconstruct(reader: Reader, arguments: tuple[Any, ...]) -> Any:
    if len(arguments) != 3 or type(arguments[0]) is not Name or arguments[0].text != "numpy.ndarray":
        raise EpisodeError("makes an array of an unknown class: refused")
    reader.budget.spend(UNFINISHED_BYTES)
    return Beginning()


def _frombuffer(reader: Reader, arguments: tuple[Any, ...]) -> Any:
    if len(arguments) not in (4, 5) or not _is_one(arguments[3], "C", "F"):
        raise EpisodeError("holds a broken array")
    content, dtype, shape, order = arguments[:4]
    reader.budget.spend(ARRAY_BYTES)
    return make_array(reader.budget, content, dtype, shape, fortran=order == "F")


def _dtype(reader: Reader, arguments: tuple[Any, ...]) -> Any:
    code = arguments[0] if arguments else None
    if type(code) is not str or not CODE.fullmatch(code):
        raise EpisodeError(f"holds an array of type {str(code)[:50]!r}, which data has no need of: refused")
    reader.budget.spend(UNFINISHED_BYTES)
    try:
        return Dtype(np.dtype(code))
    except TypeError:
        raise EpisodeError(f"holds an array of the unknown type {code!r}") from None


def _scalar(reader: Reader, arguments: tuple[Any, ...]) -> Any:
    if len(arguments) != 2 or not isinstance(arguments[0], Dtype) or arguments[0].value.kind == "O":
        raise EpisodeError("holds a broken number")
    # A text of numpy keeps its characters twice: as Python's text, and as four bytes each.
    reader.budget.spend(SCALAR_BYTES + 2 * arguments[0].value.itemsize)
    return make_array(reader.budget, arguments[1], arguments[0], ())[()]


def _encode(reader: Reader, arguments: tuple[Any, ...]) -> Any:
    if len(arguments) != 2 or type(arguments[0]) is not str or not _is_one(arguments[1], "latin1", "latin-1"):
        raise EpisodeError("holds broken bytes")
    reader.budget.spend(64 + len(arguments[0]))
    try:
        return arguments[0].encode("latin1")
    except UnicodeEncodeError:
        raise EpisodeError("holds broken bytes") from None


def _bytes(reader: Reader, arguments: tuple[Any, ...]) -> Any:
    if len(arguments) == 2:
        return _encode(reader, arguments)
    if arguments and not isinstance(arguments[0], bytes | memoryview):
        raise EpisodeError("makes bytes of something else: refused")
    return arguments[0] if arguments else b""


def _set(reader: Reader, arguments: tuple[Any, ...]) -> Any:
    if len(arguments) != 1 or type(arguments[0]) is not list:
        raise EpisodeError("holds a broken set")
    reader.budget.spend(256 + 64 * len(arguments[0]))
    return {key(each) for each in arguments[0]}


def _complex(reader: Reader, arguments: tuple[Any, ...]) -> Any:
    if len(arguments) != 2 or not all(type(each) is float for each in arguments):
        raise EpisodeError("holds a broken number")
    reader.budget.spend(32)
    return complex(*arguments)


def _ordered(reader: Reader, arguments: tuple[Any, ...]) -> Any:
    pairs = arguments[0] if arguments else []
    if type(pairs) is not list or not all(type(pair) in (list, tuple) and len(pair) == 2 for pair in pairs):
        raise EpisodeError("holds a broken dict")
    reader.budget.spend(64 + 96 * len(pairs))
    return {key(name): value for name, value in pairs}


def _storage(reader: Reader, arguments: tuple[Any, ...]) -> Any:
    """A storage in torch's older format: five pickles, then the elements. The same bytes are read once."""
    if len(arguments) != 1 or not isinstance(arguments[0], bytes | memoryview):
        raise EpisodeError("holds a broken storage")
    content = arguments[0]
    if id(content) not in reader.storages:
        inner = Reader(memoryview(content)[:MAX_STORAGE_HEAD], _STORAGE_NAMES, reader.budget, persistent=reference)
        _, _, _, target, keys = legacy_head(inner)
        reader.budget.spend(STORAGE_BYTES + 8 * inner.position)
        if type(target) is not Reference or type(keys) is not list or len(keys) != 1 or inner.size(8) != target.numel:
            raise EpisodeError("holds a broken storage")
        elements = memoryview(content)[inner.position :][: target.numel * itemsize(target.kind)]
        if len(elements) != target.numel * itemsize(target.kind):
            raise EpisodeError("is cut off")
        reader.storages[id(content)] = content, Storage(target.kind, elements)
    return reader.storages[id(content)][1]


def legacy_head(reader: Reader) -> tuple[Any, ...]:
    """The five pickles with which torch's older format begins: magic, protocol, system, content and keys."""
    head = tuple(reader.run() for _ in range(5))
    magic, protocol, system = head[:3]
    if type(magic) is not int or magic != LEGACY_MAGIC or type(protocol) is not int or protocol != LEGACY_PROTOCOL:
        raise EpisodeError("holds a storage of an unknown format")
    if type(system) is not dict or system.get("little_endian") is not True:
        raise EpisodeError("holds a storage of a machine with another byte order")
    return head


def _tensor_array(reader: Reader, arguments: tuple[Any, ...]) -> Any:
    if len(arguments) not in (6, 7):
        raise EpisodeError("holds a broken tensor")
    return make_tensor_array(reader.budget, *arguments[:4])


Build = Callable[[Reader, tuple[Any, ...]], Any]

_STORAGE_NAMES: Mapping[str, Build | None] = {f"torch.{name}": None for name in STORAGES}
_BUILTINS = {"bytes": _bytes, "bytearray": _bytes, "set": _set, "frozenset": _set, "complex": _complex}

NAMES: Mapping[str, Build | None] = {
    **dict.fromkeys((f"numpy.{core}.multiarray._reconstruct" for core in ("core", "_core")), _reconstruct),
    **dict.fromkeys((f"numpy.{core}.multiarray.scalar" for core in ("core", "_core")), _scalar),
    **dict.fromkeys((f"numpy.{core}.numeric._frombuffer" for core in ("core", "_core")), _frombuffer),
    "numpy.ndarray": None,
    "numpy.dtype": _dtype,
    "_codecs.encode": _encode,
    **{f"{module}.{name}": build for module in ("builtins", "__builtin__") for name, build in _BUILTINS.items()},
    "collections.OrderedDict": _ordered,
    "torch.storage._load_from_bytes": _storage,
    "torch._utils._rebuild_tensor_v2": _tensor_array,
}  # fmt: skip
"""The allow-list of a pickle: each name with what it builds, or None where it is only handed to another."""
