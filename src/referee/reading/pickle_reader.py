"""Reads a pickle as data: no name in it is looked up, and nothing in it is ever called.

A pickle is a program for a small stack machine. This is that machine without its dangerous half. A name is a mere
token; the few names that data needs (see `pickle_types`) each stand for a function of ours that makes an array, a
number or a container, and any other name ends the reading. Whatever is made is paid, before it is made, from a budget
that follows from the size of the file. Long bytes are not copied: they stay views of what is read.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from referee.errors import EpisodeError

MEMORY_FACTOR, MEMORY_BASE = 24, 64 << 20
"""A file of n bytes may make objects of 24 n + 64 MiB: honest files of small arrays need about 15 n."""
REPEAT_FACTOR, REPEAT_BASE = 4, 256 << 20
"""The same array may stand in many places, but written out they may hold no more than 4 n + 256 MiB."""
MAX_DEPTH = 100
MAX_MARKS = 1000
SHORT = 4096
"""Bytes up to this length are copied; longer ones stay views, so that a large file is not read before it is used."""
NAME_BYTES = 256
"""What a name takes, with its text."""

RELEASE_EVERY = 64 << 20


class Budget:
    """The memory that a file may still ask for."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.left = MEMORY_FACTOR * size + MEMORY_BASE

    def spend(self, count: int) -> None:
        """Pay for `count` bytes, or refuse to."""
        self.left -= count
        if self.left < 0:
            raise EpisodeError(f"asks for far more memory than its {self.size} bytes explain: refused")


class Name:
    """A name that stands in a pickle. It is only ever compared."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class Unfinished:
    """Something of which only the beginning was read; `slots` are the places in the memo that wait for the rest."""

    def __init__(self) -> None:
        self.slots: list[int] = []

    def finish(self, reader: Reader, state: Any) -> Any:
        """The value, now that its state is there."""
        raise NotImplementedError


class Reader:
    """The machine. `load` reads one pickle from `position` on and may be called again for the next."""

    def __init__(
        self,
        data: memoryview,
        names: Mapping[str, Callable[[Reader, tuple[Any, ...]], Any] | None],
        budget: Budget,
        *,
        position: int = 0,
        persistent: Callable[[Any], Any] | None = None,
        release: Callable[[], None] | None = None,
    ) -> None:
        self.data = data
        self.end = len(data)
        self.position = position
        self.names = names
        """What a name builds; None for one that is only handed to others."""
        self.budget = budget
        self.persistent = persistent
        """What stands outside of the pickle, as the storages of torch; without it such a reference is refused."""
        self.release = release
        """Called now and then, to let go of what was read of a large file."""
        self.released = position
        self.stack: list[Any] = []
        self.marked: list[list[Any]] = []
        self.memo: list[Any] = []
        self.storages: dict[int, tuple[Any, Any]] = {}
        """Storages that were read out of bytes, by the id of these, which are kept so that the id stays theirs."""

    def load(self) -> Any:
        """The value of the pickle: plain containers, numbers, text, bytes and arrays."""
        value = self.run()
        self.check(value)
        return value

    def check(self, value: Any) -> None:
        """Refuse what is nested too deeply, holds itself or names, or would grow beyond measure if written out."""
        _Measure(self.budget.size).of(value, 0)

    def run(self) -> Any:
        """The same, unchecked: it may still hold names."""
        self.stack, self.marked, self.memo = [], [], []
        data, budget = self.data, self.budget
        try:
            while True:
                code = data[self.position]
                self.position += 1
                if code == _STOP:
                    break
                action = _ACTIONS.get(code)
                if action is None:
                    raise EpisodeError(f"is no pickle of data: it uses opcode {code:#04x}")
                action(self)
                if budget.left < 0:
                    budget.spend(0)
            return self.stack.pop()
        except IndexError:
            raise EpisodeError("is cut off or no pickle") from None
        except UnicodeDecodeError:
            raise EpisodeError("holds text that is no UTF-8") from None

    def take(self, count: int) -> memoryview:
        """The next `count` bytes."""
        start = self.position
        self.position = end = start + count
        if end > self.end:
            raise EpisodeError("is cut off")
        return self.data[start:end]

    def size(self, width: int) -> int:
        """The next `width` bytes as a length."""
        if width == 1:
            self.position += 1
            return self.data[self.position - 1]
        return int.from_bytes(self.take(width), "little")

    def paid(self, count: int, value: Any) -> Any:
        """The value, of `count` bytes."""
        self.budget.left -= count
        return value

    def since_mark(self) -> list[Any]:
        """What was pushed since the last mark."""
        items = self.stack
        self.stack = self.marked.pop()
        return items

    def text(self, length: int) -> str:
        """The next `length` bytes as text."""
        self.budget.spend(64 + length)
        return str(self.take(length), "utf-8")

    def bytes(self, length: int) -> bytes | memoryview:
        """The next `length` bytes: a copy of few, a view of many."""
        view = self.take(length)
        self.budget.spend(40 + min(length, SHORT))
        if self.release is not None and self.position - self.released > RELEASE_EVERY:
            self.released = self.position
            self.release()
        return view if length > SHORT else view.tobytes()

    def remember(self, slot: int) -> None:
        """Put the top of the stack into the memo, whose places are given one after the other."""
        top = self.stack[-1]
        known = len(self.memo)
        if slot == known:
            self.budget.left -= 8
            self.memo.append(top)
        elif slot < known:
            self.memo[slot] = top
        else:
            raise EpisodeError("is broken: it numbers its objects with gaps")
        if isinstance(top, Unfinished):
            top.slots.append(slot)

    def name(self, text: str) -> None:
        """Push a name, if it is one of those that data needs."""
        if text not in self.names:
            raise EpisodeError(f"refers to {text[:200]}, which data has no need of: refused")
        self.budget.spend(NAME_BYTES)
        self.stack.append(Name(text))

    def call(self, name: Any, arguments: Any) -> Any:
        """What the name builds from the arguments."""
        if type(name) is not Name or type(arguments) is not tuple:
            raise EpisodeError("is broken: it calls what is no name")
        build = self.names[name.text]
        if build is None:
            raise EpisodeError(f"calls {name.text}, which data has no need of: refused")
        return build(self, arguments)

    def finish(self, state: Any) -> None:
        """Give the top of the stack its state."""
        top = self.stack[-1]
        if isinstance(top, Unfinished):
            self.stack[-1] = value = top.finish(self, state)
            if value is not top:  # a type stays itself, however often its state is set
                for slot in top.slots:
                    self.memo[slot] = value
                top.slots.clear()
        elif not (type(top) is dict and type(state) is dict and state.keys() <= {"_metadata"}):  # of a state_dict
            raise EpisodeError("sets the state of an object, which data has no need of: refused")


class _Measure:
    """Measures values as if everything that stands in several places were written out at each; looks at each once."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.limit = REPEAT_FACTOR * size + REPEAT_BASE
        self.known: dict[int, tuple[int, int]] = {}
        """Bytes and height of the containers that were measured, by id."""

    def of(self, value: Any, depth: int) -> tuple[int, int]:
        """Bytes and height of a value that stands `depth` deep."""
        kind = type(value)
        if kind in _PLAIN:
            return 32, 0
        if kind is str or kind is bytes or kind is bytearray:
            return 32 + len(value), 0
        if kind is dict:
            return self.container(value, value.values(), depth)
        if kind in _CONTAINERS:
            return self.container(value, value, depth)
        if kind is np.ndarray and value.dtype.kind == "O":
            return self.container(value, value.flat, depth)
        if hasattr(value, "nbytes"):  # arrays, numbers, tensors and views of the file
            if value.nbytes > self.limit:
                self.refuse()
            return 32 + value.nbytes, 0
        raise EpisodeError("holds a name or an unfinished array where data should be")

    def container(self, value: Any, inside: Iterable[Any], depth: int) -> tuple[int, int]:
        """The same for a container."""
        if id(value) not in self.known:
            total = height = 0
            if depth < MAX_DEPTH:
                for each in inside:
                    more, below = self.of(each, depth + 1)
                    total += more
                    height = max(height, below)
            if depth + height >= MAX_DEPTH:
                raise EpisodeError(f"is nested more than {MAX_DEPTH} deep, or holds itself: refused")
            if total > self.limit:
                self.refuse()
            self.known[id(value)] = total + 32, height + 1
        return self.known[id(value)]

    def refuse(self) -> None:
        """Say why."""
        raise EpisodeError(f"would fill far more memory than its {self.size} bytes explain: refused")


_PLAIN = frozenset({int, float, bool, complex, type(None)})
_CONTAINERS = frozenset({list, tuple, set, frozenset})
_STOP = pickle.STOP[0]
_ACTIONS: dict[int, Callable[[Reader], None]] = {}


def _on(code: bytes) -> Callable[[Callable[[Reader], None]], Callable[[Reader], None]]:
    def keep(action: Callable[[Reader], None]) -> Callable[[Reader], None]:
        _ACTIONS[code[0]] = action
        return action

    return keep


def _push(code: bytes, make: Callable[[Reader], Any]) -> None:
    _ACTIONS[code[0]] = lambda reader: reader.stack.append(make(reader))


_push(pickle.NONE, lambda reader: None)
_push(pickle.NEWTRUE, lambda reader: True)
_push(pickle.NEWFALSE, lambda reader: False)
_push(pickle.EMPTY_TUPLE, lambda reader: ())
_push(pickle.EMPTY_LIST, lambda reader: reader.paid(64, []))
_push(pickle.EMPTY_DICT, lambda reader: reader.paid(64, {}))
_push(pickle.EMPTY_SET, lambda reader: reader.paid(256, set()))
_push(pickle.BININT2, lambda reader: reader.paid(32, reader.size(2)))
_push(pickle.BININT, lambda reader: reader.paid(32, int.from_bytes(reader.take(4), "little", signed=True)))
_push(pickle.BINFLOAT, lambda reader: reader.paid(32, struct.unpack(">d", reader.take(8))[0]))
_push(pickle.SHORT_BINUNICODE, lambda reader: reader.text(reader.size(1)))
_push(pickle.BINUNICODE, lambda reader: reader.text(reader.size(4)))
_push(pickle.BINUNICODE8, lambda reader: reader.text(reader.size(8)))
_push(pickle.SHORT_BINBYTES, lambda reader: reader.bytes(reader.size(1)))
_push(pickle.BINBYTES, lambda reader: reader.bytes(reader.size(4)))
_push(pickle.BINBYTES8, lambda reader: reader.bytes(reader.size(8)))
_push(pickle.BYTEARRAY8, lambda reader: reader.bytes(reader.size(8)))
_push(pickle.LONG_BINGET, lambda reader: reader.memo[reader.size(4)])


# The two that are met most often take the short way.
@_on(pickle.BININT1)
def _int(reader: Reader) -> None:
    reader.stack.append(reader.data[reader.position])
    reader.position += 1


@_on(pickle.BINGET)
def _get(reader: Reader) -> None:
    reader.stack.append(reader.memo[reader.data[reader.position]])
    reader.position += 1


@_on(pickle.PROTO)
def _proto(reader: Reader) -> None:
    if not 2 <= reader.size(1) <= 5:
        raise EpisodeError("is a pickle of an old or unknown protocol: write it again with protocol 2 to 5")


@_on(pickle.FRAME)
def _frame(reader: Reader) -> None:
    if reader.size(8) > len(reader.data) - reader.position:
        raise EpisodeError("is cut off")


@_on(pickle.MARK)
def _mark(reader: Reader) -> None:
    if len(reader.marked) >= MAX_MARKS:
        raise EpisodeError("is nested too deeply: refused")
    reader.marked.append(reader.stack)
    reader.stack = []
    reader.budget.left -= 64


@_on(pickle.LONG1)
def _long(reader: Reader) -> None:
    length = reader.size(1)
    if length > 32:
        raise EpisodeError(f"holds a whole number of {length} bytes, which data has no need of: refused")
    reader.budget.left -= 64
    reader.stack.append(int.from_bytes(reader.take(length), "little", signed=True))


@_on(pickle.FROZENSET)
def _frozenset(reader: Reader) -> None:
    items = reader.since_mark()
    reader.budget.left -= 256 + 64 * len(items)
    reader.stack.append(frozenset(key(item) for item in items))


@_on(pickle.TUPLE)
def _tuple(reader: Reader) -> None:
    items = reader.since_mark()
    reader.budget.left -= 48 + 8 * len(items)
    reader.stack.append(tuple(items))


@_on(pickle.TUPLE1)
def _tuple1(reader: Reader) -> None:
    reader.budget.left -= 48
    reader.stack[-1] = (reader.stack[-1],)


@_on(pickle.TUPLE2)
def _tuple2(reader: Reader) -> None:
    reader.budget.left -= 56
    last = reader.stack.pop()
    reader.stack[-1] = (reader.stack[-1], last)


@_on(pickle.TUPLE3)
def _tuple3(reader: Reader) -> None:
    reader.budget.left -= 64
    last, middle = reader.stack.pop(), reader.stack.pop()
    reader.stack[-1] = (reader.stack[-1], middle, last)


@_on(pickle.APPEND)
def _append(reader: Reader) -> None:
    item = reader.stack.pop()
    _extend(reader, [item])


@_on(pickle.APPENDS)
def _appends(reader: Reader) -> None:
    _extend(reader, reader.since_mark())


def _extend(reader: Reader, items: list[Any]) -> None:
    target = reader.stack[-1]
    if type(target) is not list:
        raise EpisodeError("is broken: it appends to what is no list")
    reader.budget.left -= 10 * len(items)
    target.extend(items)


@_on(pickle.SETITEM)
def _set_item(reader: Reader) -> None:
    value, name = reader.stack.pop(), reader.stack.pop()
    _update(reader, [name, value])


@_on(pickle.SETITEMS)
def _set_items(reader: Reader) -> None:
    _update(reader, reader.since_mark())


def _update(reader: Reader, items: list[Any]) -> None:
    target = reader.stack[-1]
    if type(target) is not dict or len(items) % 2:
        raise EpisodeError("is broken: it sets items of what is no dict")
    reader.budget.left -= 48 * len(items)
    for index in range(0, len(items), 2):
        target[key(items[index])] = items[index + 1]


@_on(pickle.ADDITEMS)
def _add_items(reader: Reader) -> None:
    items = reader.since_mark()
    target = reader.stack[-1]
    if type(target) is not set:
        raise EpisodeError("is broken: it adds to what is no set")
    reader.budget.left -= 64 * len(items)
    target.update(key(item) for item in items)


def key(value: Any) -> Any:
    """The value, if it may be a key: text or a usual number, so that no choice of keys makes a slow dict."""
    if type(value) is str or value is None or (type(value) is int and abs(value) < 2**60) or type(value) is bool:
        return value
    raise EpisodeError(f"has a key that is a {type(value).__name__}, but text or numbers are needed")


@_on(pickle.POP)
def _pop(reader: Reader) -> None:
    reader.stack.pop()


@_on(pickle.POP_MARK)
def _pop_mark(reader: Reader) -> None:
    reader.since_mark()


@_on(pickle.MEMOIZE)
def _memoize(reader: Reader) -> None:
    reader.remember(len(reader.memo))


@_on(pickle.BINPUT)
def _put(reader: Reader) -> None:
    reader.remember(reader.size(1))


@_on(pickle.LONG_BINPUT)
def _long_put(reader: Reader) -> None:
    reader.remember(reader.size(4))


@_on(pickle.GLOBAL)
def _global(reader: Reader) -> None:
    lines = bytes(reader.data[reader.position : reader.position + 512]).split(b"\n", 2)
    if len(lines) < 3:
        raise EpisodeError("is cut off, or refers to a name of endless length")
    reader.position += len(lines[0]) + len(lines[1]) + 2
    reader.name(f"{lines[0].decode()}.{lines[1].decode()}")


@_on(pickle.STACK_GLOBAL)
def _stack_global(reader: Reader) -> None:
    name, module = reader.stack.pop(), reader.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise EpisodeError("is broken: it refers to a name that is no text")
    reader.name(f"{module}.{name}")


@_on(pickle.REDUCE)
def _reduce(reader: Reader) -> None:
    arguments = reader.stack.pop()
    reader.stack[-1] = reader.call(reader.stack[-1], arguments)


@_on(pickle.BUILD)
def _build(reader: Reader) -> None:
    state = reader.stack.pop()
    reader.finish(state)


@_on(pickle.NEWOBJ)
@_on(pickle.NEWOBJ_EX)
@_on(pickle.OBJ)
@_on(pickle.INST)
def _object(reader: Reader) -> None:
    raise EpisodeError("makes an object of a class, which data has no need of: refused")


@_on(pickle.BINPERSID)
def _persistent(reader: Reader) -> None:
    if reader.persistent is None:
        raise EpisodeError("refers to something outside of the file: refused")
    reader.stack[-1] = reader.persistent(reader.stack[-1])
