"""Checksums: every flipped bit is noticed, what has none is read, and the message names the file and the way out."""

import contextlib
import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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


def test_a_sealed_zip_is_read_by_others_and_no_flipped_bit_passes(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    values = {"weights": torch.arange(5000), "step": 3}
    torch.save(values, path)
    checksums.seal_zip(path)
    checksums.verify_zip(path)
    assert torch.load(path, weights_only=True)["weights"].tolist() == list(range(5000))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    whole = path.read_bytes()
    seal = len(whole) - 16 - len(checksums.SEAL)
    for place in [*range(0, seal, 97), *range(seal - 22, seal), *range(len(whole) - 16, len(whole))]:
        changed = bytearray(whole)
        changed[place] ^= 4
        path.write_bytes(changed)
        with pytest.raises(ChecksumError, match=r"x.pt: has changed since it was written"):
            checksums.verify_zip(path)
    checksums_of_records = bytearray(whole)  # without the seal's name, each record's own sum counts
    checksums_of_records[seal] ^= 4
    checksums_of_records[500] ^= 4
    path.write_bytes(checksums_of_records)
    with pytest.raises(ChecksumError, match=r"x.pt: has changed since it was written"):
        checksums.verify_zip(path)


def test_a_list_of_older_versions_is_verified(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"a" * 9000)
    checksums.write_json(tmp_path / checksums.SUMS, {"files": {"a.bin": [9000, checksums.crc32(b"a" * 9000)]}})
    assert checksums.verify_sums(tmp_path)
    (tmp_path / "a.bin").write_bytes(b"a" * 8999 + b"b")
    with pytest.raises(ChecksumError, match=r"a.bin: has changed"):
        checksums.verify_sums(tmp_path)


@pytest.mark.parametrize("size", [0, 1, 8, 4095, 4096, 5000, 262_144, 300_001])
@pytest.mark.parametrize("start", [0, 1])
def test_a_page_sum_depends_on_every_byte_and_page(size: int, start: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size + start, dtype=np.uint8)
    whole = checksums.page_sum(data.tobytes()[start:])
    assert checksums.page_sum(data[start:].data) == whole and len(whole) == 16  # wherever it lies in memory
    for place in {*range(start, size + start, max(1, size // 40)), *range(max(start, size - 20), size + start)}:
        for bit in (1, 128):
            data[place] ^= bit
            assert checksums.page_sum(data[start:].data) != whole
            data[place] ^= bit
    if size > 4096:
        swapped = data[start:].copy()
        swapped[:4096], swapped[-4096:] = data[start:][-4096:], data[start:][:4096]
        assert checksums.page_sum(swapped.data) != whole


@given(st.binary(max_size=20_000), st.lists(st.integers(0, 20_000), max_size=6))
def test_a_page_sum_does_not_depend_on_how_the_bytes_come(data: bytes, cuts: list[int]) -> None:
    total, start = checksums.PageSum(), 0
    for cut in [*sorted(cuts), len(data)]:
        total.update(data[start:cut])
        start = max(start, cut)
    assert total.hexdigest() == checksums.page_sum(data)


def test_a_page_sum_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    data = bytes(range(256)) * 10_000
    (tmp_path / "x").write_bytes(data)
    assert checksums.page_sum_of(tmp_path / "x") == checksums.page_sum(data)
    assert checksums.page_sum_of(tmp_path / "x", without=5) == checksums.page_sum(data[:-5])


def test_a_page_sum_is_the_same_tomorrow() -> None:
    """Files carry it: it must never change."""
    pages = np.frombuffer(bytes(range(256)) * 2000, "<u8")
    sums = [sum(map(int, page)) % 2**64 for page in pages.reshape(-1, 512)]
    expected = hashlib.blake2b(np.array(sums, "<u8").tobytes(), digest_size=8).hexdigest()
    assert checksums.page_sum(bytes(range(256)) * 2000) == expected == "0c47f318a24de992"
