"""Damages files, the same way for the same seed: bits, cuts, copies, wrong JSON, huge numbers, bad UTF-8, depth."""

import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

Mutation = Callable[[bytearray, random.Random], None]


def flip_bit(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    data[at] ^= 1 << chance.randrange(8)


def change_bytes(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 2, 8, 64))):
        data[chance.randrange(len(data))] = chance.randrange(256)


def cut(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def drop(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    del data[at : at + chance.choice((1, 2, 5, 40, 400))]


def repeat(data: bytearray, chance: random.Random) -> None:
    """A part of it again, somewhere else, or many times."""
    at, to = chance.randrange(len(data)), chance.randrange(len(data))
    data[to:to] = data[at : at + chance.randrange(1, 200)] * chance.choice((1, 1, 2, 50))


def swell(data: bytearray, chance: random.Random) -> None:
    """Make some number in it large."""
    at = chance.randrange(len(data))
    data[at : at + chance.choice((1, 2, 4, 8))] = b"\xff" * chance.choice((1, 2, 4, 8))


def zeros(data: bytearray, chance: random.Random) -> None:
    """A block that was never written, as after a power cut."""
    at = chance.randrange(len(data))
    length = min(chance.choice((1, 16, 512, 4096)), len(data) - at)
    data[at : at + length] = bytes(length)


def bad_text(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    data[at:at] = chance.choice(
        (b"\xff\xfe", b"\xc3\x28", b"\x00", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\x1b[31m")
    )


def deep(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    data[at:at] = chance.choice((b"[", b'{"a":', b"{a: ", b"- ")) * chance.choice((100, 20_000))


def digits(data: bytearray, chance: random.Random) -> None:
    """Another number in place of one that is there, or anywhere."""
    places = [index for index, byte in enumerate(data) if 48 <= byte <= 57]
    at = chance.choice(places) if places else chance.randrange(len(data))
    number = chance.choice((b"-1", b"0", b"1e999", b"9" * 30, b"9" * 5000, b"NaN", b"-Infinity", b"0.5", b"null"))
    data[at : at + 1] = number


def call(data: bytearray, chance: random.Random) -> None:
    """Put a call that touches the canary where it does not belong."""
    at = chance.randrange(len(data))
    data[at:at] = chance.choice(
        (b"cos\nsystem\n(X\x0c\x00\x00\x00touch CANARYtR", b"cposix\nsystem\n", b"cbuiltins\neval\n")
    )


ANY: list[Mutation] = [flip_bit, flip_bit, change_bytes, cut, drop, repeat, swell, zeros, bad_text, deep, digits, call]

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 3, 10**12, 2**63, 10**40, 1e308, 0.5, float("nan"), float("inf"), "", "text", "0",
    "\x00", "/", "../../x", "é" * 50, "x" * 5000, [], {}, [[]], [None], [1, "a"], {"a": 1}, {"": None}, [[1, 2], [3]],
    [0] * 50, "2020-01-01",
]  # fmt: skip


def disturbed(value: Any, chance: random.Random, rate: float) -> Any:
    """A JSON value with parts of it replaced, lost, renamed or doubled."""
    if chance.random() < rate:
        return chance.choice(ODD)
    if isinstance(value, dict):
        kept = {key: disturbed(each, chance, rate) for key, each in value.items() if chance.random() > rate / 2}
        if chance.random() < rate:
            kept[chance.choice(["", "x", "meta", "version", "step", "a/b", "__class__"])] = chance.choice(ODD)
        return kept
    if isinstance(value, list):
        items = [disturbed(each, chance, rate) for each in value if chance.random() > rate / 2]
        return items + items[-1:] * (chance.random() < rate)
    return value


def disturbed_json(data: bytes, chance: random.Random) -> bytes:
    """A file of JSON, or of a JSON value per line, that is still JSON, but says something else."""
    lines = data.decode().splitlines() if data.count(b"\n{") else [data.decode()]
    hit = chance.randrange(len(lines))
    lines[hit] = json.dumps(disturbed(json.loads(lines[hit]), chance, chance.choice((0.02, 0.1, 0.3))))
    return "\n".join(lines).encode() + b"\n"


class Canary:
    """Pickles as a call that makes a file: whoever runs it has run code out of a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


def mutated(data: bytes, chance: random.Random, *, kind: str, canary: Path) -> bytes:
    """The file, damaged. kind: `json` and `pickle` files are now and then damaged in their own language."""
    if kind == "json" and chance.random() < 0.6:
        return disturbed_json(data, chance)
    if kind == "pickle" and chance.random() < 0.05:
        return pickle.dumps({"frames": [{"obs": Canary(canary)}], "images": Canary(canary)}, chance.choice((2, 4)))
    content = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        if content:
            chance.choice(ANY)(content, chance)
    return bytes(content).replace(b"touch CANARY", b"touch x.txt ")
