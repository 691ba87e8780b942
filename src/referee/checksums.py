"""Checksums of the files that Referee writes: a reader notices a changed byte, and says what to do.

JSON files and JSON lines carry theirs as the last key, `"checksum": "crc32:1a2b3c4d"`; it covers every byte before it.
A folder of files that others define (weights, arrays) carries one list of them. Zip archives (`.pt`) have CRC-32s of
their own. What was written without a checksum, by older versions or by hand, is read as before.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import re
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from referee import files
from referee.errors import RefereeError

KEY = "checksum"
SUMS = "checksums.json"
"""The list of a folder."""
BLOCK = 1 << 20
PAGE, PAGES = 4096, 64
_TAIL = re.compile(rb',?\s*"checksum":\s*"crc32:([0-9a-f]{8})"\s*\}\s*\Z')
_LINE_KEY = b',"checksum":"crc32:'
_CLAIMS = re.compile(rb'"checksum"|crc32:')

Buffer = bytes | memoryview | mmap.mmap


class ChecksumError(RefereeError):
    """A file is not as it was written."""


def crc32(data: bytes | memoryview, start: int = 0) -> str:
    """Eight hexadecimal digits."""
    return f"{zlib.crc32(data, start):08x}"


def crc32_of(path: Path) -> str:
    """The same of all bytes of a file, a block at a time."""
    value, block = 0, bytearray(BLOCK)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            value = zlib.crc32(memoryview(block)[:count], value)
    return f"{value:08x}"


def block_sum(data: Buffer) -> str:
    """Sixteen hexadecimal digits, as fast as memory is read: for what is large, and read whole.

    Pages of 4 KiB are added up, word by word, in blocks of 64 of them; these sums and the rest are hashed (BLAKE2b).
    """
    raw = np.frombuffer(data, np.uint8)
    blocks, pages = len(raw) // (PAGES * PAGE) * (PAGES * PAGE), len(raw) // PAGE * PAGE
    hashed = hashlib.blake2b(digest_size=8)
    hashed.update(raw[:blocks].view("<u8").reshape(-1, PAGES, PAGE // 8).sum(axis=1, dtype=np.uint64).data)
    hashed.update(raw[blocks:pages].view("<u8").reshape(-1, PAGE // 8).sum(axis=0, dtype=np.uint64).data)
    hashed.update(raw[pages:].data)
    return hashed.hexdigest()


# --- JSON objects: whole files, and lines ---


def sealed_line(values: dict[str, Any]) -> str:
    """One line of JSON, without its end, that carries its checksum."""
    return _sealed(values, json.dumps(values, separators=(",", ":")), '"checksum":"crc32:')


def sealed_json(values: dict[str, Any]) -> str:
    """The text of a JSON file that carries its checksum."""
    return _sealed(values, json.dumps(values, indent=2), '\n  "checksum": "crc32:', "\n") + "\n"


def _sealed(values: dict[str, Any], text: str, key: str, end: str = "") -> str:
    if KEY in values:
        raise ValueError(f"a value of its own is called {KEY}")
    body = text[:-1].rstrip()
    comma = "" if body == "{" else ","
    return f'{body}{comma}{key}{crc32(body.encode())}"{end}}}'


def unsealed(text: bytes | str) -> tuple[dict[str, Any], bool]:
    """The values in such a text without its checksum, and whether it carries one.

    ChecksumError if it does not fit; ValueError if the text is not a JSON object.
    """
    raw = text.encode() if isinstance(text, str) else text
    if raw[-29:-10] == _LINE_KEY and raw[-2:] == b'"}':  # as we write lines: the usual case, and the quick one
        if b"%08x" % zlib.crc32(raw[:-29]) != raw[-10:-2]:
            raise ChecksumError("has changed since it was written (checksum)")
        return _object(raw[:-29].decode() + "}"), True
    tail = _TAIL.search(raw, max(0, len(raw) - 64))
    if tail is not None and crc32(memoryview(raw)[: tail.start()]) != tail[1].decode():
        raise ChecksumError("has changed since it was written (checksum)")
    values = _object(raw.decode())
    # One flipped bit cannot hide both words: what speaks of a checksum must have one that fits.
    if tail is None and (KEY in values or _CLAIMS.search(raw, max(0, len(raw) - 64))):
        raise ChecksumError("has changed since it was written (checksum)")
    values.pop(KEY, None)
    return values, tail is not None


def _object(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(values, dict):
        raise ValueError("it is not an object")
    return values


def write_json(path: Path, values: dict[str, Any]) -> None:
    """A JSON file that carries its checksum: the whole file, or none of it."""
    files.write_text(path, sealed_json(values))


def read_json(path: Path) -> dict[str, Any]:
    """The values of a JSON file, checked where it carries a checksum; or one line that names the file."""
    try:
        return unsealed(path.read_bytes())[0]
    except ChecksumError as error:
        raise ChecksumError(
            f"{path}: {error}: bring it back from a copy; if you edited it on purpose, remove its key {KEY}"
        ) from error
    except OSError as error:
        raise RefereeError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise RefereeError(f"{path}: is not a JSON object ({error})") from error


# --- folders ---


def write_sums(folder: Path, names: Iterable[str]) -> None:
    """List sizes and checksums of these files of a folder; call it last, before the folder gets its name."""
    listed = {name: [(folder / name).stat().st_size, crc32_of(folder / name)] for name in sorted(names)}
    write_json(folder / SUMS, {"files": listed})


def verify_sums(folder: Path, names: Iterable[str] | None = None) -> bool:
    """Raise unless the listed files (or of these, `names`) are as they were written; False if there is no list.

    A file that is not in the list is not looked at, so that others may add theirs.
    """
    path = folder / SUMS
    if not path.exists():
        return False
    listed = read_json(path).get("files")
    if not isinstance(listed, dict):
        raise RefereeError(f"{path}: is not a list of checksums: remove it, or bring the folder back from a copy")
    for name, entry in listed.items():
        if names is not None and name not in names:
            continue
        file = folder / name
        if not file.is_file():
            raise ChecksumError(f"{file}: is missing: bring the folder back from a copy")
        if entry != [file.stat().st_size, crc32_of(file)]:
            raise ChecksumError(
                f"{file}: has changed since it was written (checksum): bring it back from a copy; "
                f"if you changed it on purpose, remove {path}"
            )
    return True


# --- zip archives ---


def verify_zip(path: Path) -> None:
    """Raise unless every record of a zip archive (.pt, .npz) has the CRC-32 that the archive says."""
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
        if broken is not None:
            raise zipfile.BadZipFile(f"record {broken}")
    except OSError as error:
        raise RefereeError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError, zlib.error, EOFError) as error:
        raise ChecksumError(
            f"{path}: has changed since it was written, or is cut off ({error}): bring it back from a copy"
        ) from error
