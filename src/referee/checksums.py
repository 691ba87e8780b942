"""Checksums of the files that Referee writes: a reader notices a changed byte, and says what to do.

JSON files and JSON lines carry theirs as the last key, `"checksum": "crc32:1a2b3c4d"`; it covers every byte before it.
A folder of files that others define (weights, arrays) carries one list of them. Zip archives (`.pt`) carry theirs as
the archive's comment; others' archives have a CRC-32 for each record. What was written without a checksum, by older
versions or by hand, is read as before.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
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
PAGE = 4096
WINDOW = 16 << 20
MAPPED = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
SEAL = b"page_sum:"
"""The comment of a zip archive that Referee wrote; the page sum of all bytes before it follows."""
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


class PageSum:
    """Sixteen hexadecimal digits of a stream of bytes, as fast as memory is read: for what is large, and read whole.

    The 64-bit words of each page of 4 KiB are added up; these sums and the rest are hashed (BLAKE2b).
    """

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)
        self._rest = b""

    def update(self, data: Buffer) -> None:
        """Go on with these bytes."""
        raw = np.frombuffer(data, np.uint8)
        if self._rest:
            missing = PAGE - len(self._rest)
            self._rest += raw[:missing].tobytes()
            raw = raw[missing:]
            if len(self._rest) < PAGE:
                return
            self._add(np.frombuffer(self._rest, np.uint8))
        whole = len(raw) // PAGE * PAGE
        self._add(raw[:whole])
        self._rest = raw[whole:].tobytes()

    def hexdigest(self) -> str:
        """Of all bytes so far."""
        final = self._hash.copy()
        final.update(self._rest)
        return final.hexdigest()

    def _add(self, pages: np.ndarray) -> None:
        self._hash.update(pages.view("<u8").reshape(-1, PAGE // 8).sum(axis=1, dtype=np.uint64).astype("<u8").data)


def page_sum(data: Buffer) -> str:
    """The sum of bytes in memory."""
    total = PageSum()
    total.update(data)
    return total.hexdigest()


def page_sum_of(path: Path, *, without: int = 0) -> str:
    """The sum of a file, or of all but its last bytes; a few megabytes of it are mapped at a time."""
    total = PageSum()
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size - without
        for start in range(0, size, WINDOW):
            length = min(WINDOW, size - start)
            with mmap.mmap(file.fileno(), length, flags=MAPPED, prot=mmap.PROT_READ, offset=start) as part:
                total.update(memoryview(part))
    return total.hexdigest()


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
    listed = {name: [(folder / name).stat().st_size, page_sum_of(folder / name)] for name in sorted(names)}
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
        if not _fits(file, entry):
            raise ChecksumError(
                f"{file}: has changed since it was written (checksum): bring it back from a copy; "
                f"if you changed it on purpose, remove {path}"
            )
    return True


def _fits(file: Path, entry: Any) -> bool:
    """Whether a file has the size and the sum of its entry; older lists hold CRC-32s, of eight digits."""
    if not isinstance(entry, list) or len(entry) != 2 or file.stat().st_size != entry[0]:
        return False
    return bool(entry[1] == (crc32_of(file) if len(str(entry[1])) == 8 else page_sum_of(file)))


# --- zip archives ---


def seal_zip(path: Path) -> None:
    """Write the sum of a whole zip archive into its comment."""
    digits = len(PageSum().hexdigest())
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = SEAL + b"0" * digits
    total = page_sum_of(path, without=digits)
    with path.open("r+b") as file:
        file.seek(-digits, os.SEEK_END)
        file.write(total.encode())


def verify_zip(path: Path) -> None:
    """Raise unless a zip archive (.pt, .npz) is as it was written: by its seal, else by the CRC-32 of each record."""
    try:
        with zipfile.ZipFile(path) as archive:
            seal = archive.comment
            broken = None if seal.startswith(SEAL) else archive.testzip()
        if broken is not None:
            raise zipfile.BadZipFile(f"record {broken}")
        if seal.startswith(SEAL) and page_sum_of(path, without=len(seal) - len(SEAL)).encode() != seal[len(SEAL) :]:
            raise zipfile.BadZipFile("checksum")
    except OSError as error:
        raise RefereeError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError, zlib.error, EOFError) as error:
        raise ChecksumError(
            f"{path}: has changed since it was written, or is cut off ({error}): bring it back from a copy"
        ) from error
