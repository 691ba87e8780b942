"""Headers of `.npy` are read as numpy reads them, by many threads at once."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from referee.episodes.episode import EpisodeError
from referee.reading.npy_header import read_header


def saved(array: np.ndarray) -> memoryview:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return memoryview(buffer.getvalue())


def bare(text: str) -> memoryview:
    return memoryview(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + b"\0\0\0\0")


DTYPES = st.one_of(
    hnp.boolean_dtypes(), hnp.integer_dtypes(endianness="?"), hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)), hnp.unicode_string_dtypes(endianness="?"),
)  # fmt: skip


@given(DTYPES, hnp.array_shapes(min_dims=0, max_dims=6, min_side=0, max_side=4), st.booleans())
def test_what_numpy_writes(dtype: np.dtype, shape: tuple[int, ...], fortran: bool) -> None:
    array = np.zeros(shape, dtype, order="F" if fortran else "C")
    data = saved(array)
    header = read_header(data)
    assert header.dtype == dtype and header.shape == shape
    assert header.fortran == (array.flags.f_contiguous and not array.flags.c_contiguous)
    assert len(data) - header.start == array.nbytes


@pytest.mark.parametrize(
    "text",
    ["{'shape': (2, 3), 'descr': '|u1', 'fortran_order': False}", '{"descr":"|u1","fortran_order":False,"shape":(2,3)}',
     "{'descr': '|u1', 'fortran_order': False, 'shape': (2L, 3L), }"],
)  # fmt: skip
def test_what_other_programs_write(text: str) -> None:
    assert read_header(bare(text))[:3] == (np.uint8, (2, 3), False)


@pytest.mark.parametrize(
    "text",
    ["{'descr': '|u1', 'fortran_order': False, 'shape': (2,), 'more': 1}",
     "{'descr': '|u1', 'fortran_order': False, 'shape': (2,), 'shape': (3,)}",
     "{'descr': True, 'fortran_order': '|u1', 'shape': (2,)}", 
     "{'descr': '|u1', 'fortran_order': False, 'shape': (1 2)}",
     "{'descr': '|u1' 'fortran_order': False, 'shape': (2,)}", "'descr': '|u1', 'fortran_order': False, 'shape': (2,)",
     "{'descr': '|u1', 'fortran_order': False, 'shape': (" + "9" * 5000 + ",)}"],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(EpisodeError):
        read_header(bare(text))


def test_threads_do_not_disturb_each_other() -> None:
    data = [saved(np.zeros((count, 2), np.uint8)) for count in range(1, 9)]

    def read(count: int) -> bool:
        return all(read_header(data[count - 1]).shape == (count, 2) for _ in range(2000))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(1, 9)))
