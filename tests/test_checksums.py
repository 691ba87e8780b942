"""Checksums: every flipped bit is noticed, what has none is read, and the message names the file and the way out."""

import contextlib
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from referee import checksums
from referee.checksums import ChecksumError, sealed_json, sealed_line, unsealed
from referee.errors import RefereeError

VALUES: list[dict[str, Any]] = [{}, {"a": 1}, {"threshold": 0.25, "names": ["é", 'x"checksum"'], "none": None}]


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("seal", [sealed_line, sealed_json])
def test_no_flipped_bit_changes_a_value_unnoticed(values: dict[str, Any], seal: Any) -> None:
    text = seal(values).encode()
    assert unsealed(text) == (values, True)
    assert json.loads(text) == {**values, "checksum": json.loads(text)["checksum"]}  # anybody can read it
    for bit in range(8 * len(text)):
        changed = bytearray(text)
        changed[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(ChecksumError, ValueError):
            assert unsealed(bytes(changed)) == (values, True)  # white space behind the end


def test_text_without_a_checksum_is_read() -> None:
    assert unsealed('{"a": 1}') == ({"a": 1}, False)
    for text in ("[1]", "1", "", "{", "[" * 100_000):
        with pytest.raises(ValueError, match=r"Expecting|not an object|nested"):
            unsealed(text)
    with pytest.raises(ValueError, match="is called checksum"):
        sealed_line({"checksum": 1})


def test_a_changed_json_file_is_named_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    checksums.write_json(path, {"threshold": 0.25})
    assert checksums.read_json(path) == {"threshold": 0.25}
    path.write_text(path.read_text().replace("0.25", "0.35"))
    with pytest.raises(ChecksumError, match=r"calibration.json: has changed .* remove its key checksum"):
        checksums.read_json(path)
    path.write_text('{"threshold": 0.35}')  # the way out
    assert checksums.read_json(path) == {"threshold": 0.35}
    path.write_text("[]")
    with pytest.raises(RefereeError, match=r"calibration.json: is not a JSON object"):
        checksums.read_json(path)
    with pytest.raises(RefereeError, match="cannot be read"):
        checksums.read_json(tmp_path / "none.json")


def test_a_folder_is_checked_by_its_list(tmp_path: Path) -> None:
    assert not checksums.verify_sums(tmp_path)  # of an older version
    for name in ("a.bin", "b.bin"):
        (tmp_path / name).write_bytes(name.encode() * 1000)
    checksums.write_sums(tmp_path, ["a.bin", "b.bin"])
    (tmp_path / "more.bin").write_bytes(b"somebody else's")
    assert checksums.verify_sums(tmp_path)
    data = bytearray((tmp_path / "b.bin").read_bytes())
    data[500] ^= 1
    (tmp_path / "b.bin").write_bytes(data)
    assert checksums.verify_sums(tmp_path, ["a.bin"])
    with pytest.raises(ChecksumError, match=r"b.bin: has changed"):
        checksums.verify_sums(tmp_path)
    (tmp_path / "b.bin").unlink()
    with pytest.raises(ChecksumError, match=r"b.bin: is missing"):
        checksums.verify_sums(tmp_path)


def test_a_zip_is_checked_by_its_own_sums(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data/0", bytes(range(256)) * 100)
    checksums.verify_zip(path)
    data = path.read_bytes()
    for changed in (data[:5000] + b"!" + data[5001:], data[:-30], b"no zip"):
        path.write_bytes(changed)
        with pytest.raises(ChecksumError, match=r"x.pt: has changed since it was written, or is cut off"):
            checksums.verify_zip(path)
    with pytest.raises(RefereeError, match="cannot be read"):
        checksums.verify_zip(tmp_path / "none.pt")


@pytest.mark.parametrize("size", [0, 1, 8, 4095, 4096, 5000, 262_144, 300_001])
@pytest.mark.parametrize("start", [0, 1])
def test_a_block_sum_depends_on_every_byte_and_page(size: int, start: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size + start, dtype=np.uint8)
    whole = checksums.block_sum(data.tobytes()[start:])
    assert checksums.block_sum(data[start:].data) == whole and len(whole) == 16  # wherever it lies in memory
    for place in {*range(start, size + start, max(1, size // 40)), *range(max(start, size - 20), size + start)}:
        for bit in (1, 128):
            data[place] ^= bit
            assert checksums.block_sum(data[start:].data) != whole
            data[place] ^= bit
    if size > 300_000:
        swapped = data[start:].copy()
        swapped[:4096], swapped[262_144 : 262_144 + 4096] = data[start + 262_144 :][:4096], data[start:][:4096]
        assert checksums.block_sum(swapped.data) != whole


def test_a_block_sum_is_the_same_tomorrow() -> None:
    """Files carry it: it must never change."""
    assert checksums.block_sum(bytes(range(256)) * 2000) == "eacada9d87c2e258"
