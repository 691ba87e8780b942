"""Pieces side by side: the same results in the same order, with the modes of the thread that asks."""

import pytest
import torch

from referee.models.threads import in_threads


@pytest.fixture(autouse=True)
def _two_threads() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_order_and_threads_are_kept() -> None:
    assert in_threads(lambda piece: piece * piece, range(7)) == [0, 1, 4, 9, 16, 25, 36]
    assert in_threads(lambda piece: torch.get_num_threads(), range(4)) == [1] * 4
    assert in_threads(lambda piece: torch.get_num_threads(), range(2), threads=6) == [3, 3]
    assert torch.get_num_threads() == 2
    assert in_threads(lambda piece: piece, []) == []


def test_modes_are_those_of_the_caller() -> None:
    def modes(_: int) -> tuple[bool, bool]:
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    assert in_threads(modes, range(3)) == [(True, False)] * 3
    with torch.no_grad():
        assert in_threads(modes, range(3)) == [(False, False)] * 3
    with torch.inference_mode():
        assert in_threads(modes, range(3)) == [(False, True)] * 3


def test_an_error_of_a_piece_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda piece: 1 // piece, [1, 0, 1])
    assert torch.get_num_threads() == 2
